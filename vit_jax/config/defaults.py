"""All keys of an experiment, with their defaults and meanings.

A file in `configs/` starts from `default()` and sets what differs. The result
is locked: an unknown key is an error that suggests the nearest known one. Each
package checks the values of its own keys.
"""

import ml_collections
from ml_collections import config_dict

from vit_jax.config.errors import UserError


def default() -> ml_collections.ConfigDict:
  """Returns every key with its default, locked.

  A key without a default is a typed placeholder: it is None until it is set.
  """
  config = ml_collections.ConfigDict()
  # The seed of the initial parameters, the order of the data, the augmentation
  # and dropout.
  config.seed = 0
  config.model = _model()
  config.data = _data()
  config.augment = _augment()
  config.objective = _objective()
  config.train = _train()
  config.optim = _optim()
  config.evals = ml_collections.ConfigDict()
  config.evals.val = evaluation()
  config.evals.test = evaluation()
  config.checkpoint = _checkpoint()
  config.init_from = ml_collections.ConfigDict()
  # The checkpoint whose parameters training starts from: a file, a directory,
  # or an address such as https://..., gs://... or hf:OWNER/NAME. '': training
  # starts from random parameters.
  config.init_from.path = ''
  # How position embeddings are resized to another number of patches: 'corner',
  # 'half_pixel', 'bicubic', 'bicubic_antialias', 'dino', or 'geometric' (BEiT's
  # method for relative positions). '': as the library that wrote the checkpoint
  # does.
  config.init_from.resize = ''
  # Whether only the backbone starts from the checkpoint, even if the checkpoint
  # has the other parameters of the objective, such as a decoder.
  config.init_from.trunk_only = False
  config.mesh = _mesh()
  # Where metrics go in addition to metrics.jsonl: 'tensorboard', 'wandb',
  # 'mlflow', or several of them with commas between. '': nowhere else.
  config.reporting = 'tensorboard'
  # Tasks that share one backbone, by name; train.variant='tasks' trains them. A
  # task has its data, its objective and its evaluations; `config.task` makes
  # one. The other keys `data`, `augment`, `objective` and `evals` are then the
  # defaults of the tasks. {}: the run has one task, which those keys describe.
  config.tasks = ml_collections.ConfigDict()
  config.lock()
  config.evals.unlock()  # a config file may add evaluations of its own
  config.tasks.unlock()  # and tasks
  config.objective.options.unlock()  # each objective defines its own options
  return config


def _model() -> ml_collections.ConfigDict:
  """Returns the keys of a model; None keeps the named model's value."""
  model = ml_collections.ConfigDict()
  # Family, size and patch size; `vit_jax.list_models()` lists them. Options of
  # a family that is no ViT follow in brackets, as 'iGPT-S(colours=64)'.
  # 'init_from' is the model of the checkpoint at init_from.path.
  model.name = 'ViT-S/16'
  model.num_classes = config_dict.placeholder(int)  # None: the data's classes
  # Compile one layer and run it `depth` times, which compiles faster.
  model.scan = False
  # Which values the backward pass recomputes, to save memory: 'none';
  # 'activations', those within the MLP's activation function, and its dropout;
  # 'products', all but the results of dense layers and of attention; 'full'; or
  # the name of a policy of jax.checkpoint_policies. 'auto' is one of these by
  # the platform.
  model.remat = 'auto'
  # How attention is computed: 'plain', 'einsum', 'fused', 'xla' or 'cudnn';
  # None is what suits the platform. 'xla' and 'cudnn' have no attention
  # dropout; 'cudnn' needs a GPU and train.dtype=bfloat16 or float16.
  model.attention_implementation = config_dict.placeholder(str)
  # The keys below override the named model; None keeps its value. Not every
  # family has every key.

  model.hidden_size = config_dict.placeholder(int)  # width D of a token
  model.mlp_dim = config_dict.placeholder(int)  # hidden width of an MLP
  model.num_heads = config_dict.placeholder(int)  # attention heads of a layer
  model.depth = config_dict.placeholder(int)  # number of layers
  model.patch_size = config_dict.placeholder(object)  # pixels: int or (h, w)
  # Parts: a name, with options that differ from their defaults, as
  # 'attention(qk_norm=True)', or a class of your own, as
  # 'my_parts:WindowAttention(window=7)'. An option that is not set takes the
  # value of the key of its name, as num_heads. The page of parts lists them
  # with their options; so does `python -m vit_jax.summary --parts`.
  # Patch embedding: 'patches', 'normed', or 'hybrid', after a ResNet.
  model.patches = config_dict.placeholder(str)
  # Positions, of which several may be added: 'learned', 'factorized',
  # 'sincos2d', 'rope', 'relative_bias', 'relative_mlp_bias', as
  # 'learned + rope'; or 'none'.
  model.positions = config_dict.placeholder(str)
  # A layer: 'block', 'parallel', 'branches', 'post_norm', 'merging'; or 'block'
  # with additions that train alone: 'lora', 'adaptformer', 'houlsby'.
  model.block = config_dict.placeholder(str)
  # Attention: 'attention', 'grouped', 'differential'.
  model.attention = config_dict.placeholder(str)
  # What follows attention: 'mlp', 'swiglu', 'glu', 'geglu', 'experts'.
  model.mlp = config_dict.placeholder(str)
  model.norm = config_dict.placeholder(str)  # 'layer_norm' or 'rms_norm'
  # What the head reads: 'token', the class token; 'mean', that of the patches;
  # 'token_and_mean'; or 'map', attention pooling.
  model.pool = config_dict.placeholder(str)
  # The head: 'linear', with options as pre_logits, a layer before it, and bias,
  # its initial value.
  model.head = config_dict.placeholder(str)
  model.last_norm = config_dict.placeholder(bool)  # a norm after the last layer
  # A norm before the layers, as in CLIP.
  model.pre_norm = config_dict.placeholder(bool)
  # A learned token before the patches, which the head may read.
  model.class_token = config_dict.placeholder(bool)
  model.distillation_token = config_dict.placeholder(bool)  # as in DeiT
  model.registers = config_dict.placeholder(int)  # number of register tokens
  # A learned token for masked patches, for objectives that mask.
  model.mask_token = config_dict.placeholder(bool)
  # Dropout of the embedded patches, after attention and in the MLP; 0.
  model.dropout_rate = config_dict.placeholder(float)
  # Dropout of the weights of attention; 0.
  model.attention_dropout_rate = config_dict.placeholder(float)
  # Probability that the last layer is skipped: 0. It grows linearly with depth
  # from 0 at the first layer.
  model.stochastic_depth = config_dict.placeholder(float)
  # Share of the patches that training leaves out at random; 0.
  model.patch_dropout = config_dict.placeholder(float)
  model.layer_norm_epsilon = config_dict.placeholder(float)  # 1e-6
  # Initial weights: 'vit' (the paper's code), 'mixer', 'lecun', 'deit',
  # 'igpt', 'moco' or 'mimetic' (attention as in pre-trained models).
  model.initializers = config_dict.placeholder(str)
  return model


def _data() -> ml_collections.ConfigDict:
  data = ml_collections.ConfigDict()
  # Where examples come from. Built-in data: 'digits', 'scenes' (digits with
  # label maps), 'volumes' (tubes and spheres with label maps), 'moving_digits'
  # (videos) and 'tones' (sounds). Files: 'folder:PATH' (one folder per class,
  # or images/ and masks/ with images or scans, or the Medical Segmentation
  # Decathlon), 'video:PATH' and 'audio:PATH' (one folder per class),
  # 'table:FILE' (CSV, TSV or Parquet), 'tar:shards-{000..099}.tar' or
  # 'tar:FOLDER' (WebDataset). Libraries: 'hf:DIRECTORY' or 'hf:OWNER/NAME'
  # (Hugging Face), or the name of a TFDS dataset. Your own class:
  # 'my_module:MySource'.
  data.name = 'digits'
  # Columns of a table or an hf: dataset. '': the column whose type or name
  # fits.
  data.columns = ml_collections.ConfigDict()
  # The column of images: paths, or encoded bytes. '': the column whose type or
  # name fits.
  data.columns.image = ''
  # The column of the class of an image. '': the column whose type or name fits.
  data.columns.label = ''
  # The column of several classes of an image (multi-label). '': the column
  # whose type or name fits.
  data.columns.labels = ''
  # The column of label maps; data.map.classes names their classes. '': the
  # column whose type or name fits.
  data.columns.map = ''
  # The column with the split of each row of a table. '': the column whose name
  # fits.
  data.columns.split = ''
  # The columns of numbers to predict (regression). (): no regression.
  data.columns.numbers = ()
  # The columns of captions. A cell has one text or a list of texts. (): the
  # column whose name fits, if there is a tokenizer.
  data.columns.text = ()
  # Where captions come from. '': the data has them. 'templates:A {}.|B {}.':
  # these templates, with the name of the image's class in place of {}.
  # 'templates:LIST': a list of vit_jax/data/templates, such as 'imagenet'.
  # 'templates:FILE': a file with one template per line.
  data.captions = ''
  # Names of the classes in templates: a list of vit_jax/data/class_names, such
  # as 'cifar10', or a file with one name per line, in the order of the data's
  # classes. '': the names in the data, with spaces in place of underscores.
  data.class_names = ''
  # How captions become tokens. 'words': one token for each word of the training
  # captions. 'clip' (CLIP), 'sentencepiece' (SigLIP) and 'wordpiece' (LiT,
  # which has BERT's uncased vocabulary): a published vocabulary, which is
  # downloaded once. 'clip:FILE', 'sentencepiece:FILE' or 'wordpiece:FILE':
  # another vocabulary of the same kind. '': captions are not read.
  data.tokenizer = ''
  # Number of tokens of a caption, special tokens included. None: the number of
  # the published model.
  data.text_length = config_dict.placeholder(int)
  # What happens to captions with more than data.text_length tokens: 'cut' or
  # 'refuse'.
  data.text_too_long = 'cut'
  # The words of data.tokenizer='words'. (): the run collects them at its start.
  data.words = ()
  # The folder of TFDS data, or the cache of hf: datasets. None: the default of
  # the library.
  data.dir = config_dict.placeholder(str)
  # The training split, which may be a slice as in TFDS: 'train[:90%]'.
  data.split = 'train'
  # Size of the model's input in pixels: an int, or (height, width). Volumes
  # have (depth, height, width), videos (frames, height, width), and sounds
  # (frames of the spectrogram, mel bands).
  data.image_size = config_dict.FieldReference(224, field_type=object)
  # Draws images of rare classes more often. 0: off. 1 or 'classes': all classes
  # equally often. 0.5: in proportion to the square roots of the class sizes.
  # The number of images in an epoch does not change.
  data.balance = config_dict.FieldReference(0.0, field_type=object)
  # Number of channels of an image: 1 is grey, 3 is RGB, 4 is RGB and alpha. For
  # volumes, the number of channels of the scans.
  data.channels = 3
  # Mean that is subtracted from pixels in [0, 1]: one number for all channels,
  # or one for each. (): that of the checkpoint at init_from.path, or (0.5,)
  # without one.
  data.mean = ()
  # Standard deviation that pixels are divided by, after data.mean: one number
  # for all channels, or one for each. (): that of the checkpoint at
  # init_from.path, or (0.5,) without one.
  data.std = ()
  # The stored values that become 0 and 1, before data.mean and data.std.
  # 'type': the range of the stored type. Or (low, high), or
  # 'percentiles(0.5, 99.5)' of the training split. Values outside are clipped.
  data.intensity = config_dict.FieldReference('type', field_type=object)
  # Bits of a pixel that decoding keeps: 8 or 16. None: the headers of some
  # training images decide.
  data.bits = config_dict.placeholder(int)
  # The measured (low, high) of data.intensity='percentiles(...)'. (): the run
  # measures it at its start.
  data.intensity_window = ()
  # (height, width) of the stored images, if all have one size. They are then
  # cropped on the device. Volumes have (depth, height, width), moving_digits
  # (frames, height, width). None: the size that the source declares, if any.
  data.source_size = config_dict.placeholder(object)
  # How training images are cropped. 'random_resized(scale=(0.08, 1.0),
  # ratio=(3/4, 4/3))': a random rectangle, of a fraction of the image's area in
  # scale and of a width / height in ratio, is resized to the model's input. The
  # other crops come after data.resize. 'random': a random crop. 'pad(4)': a
  # random crop after 4 black pixels are added on each side. 'scaled(zoom=(0.5,
  # 2.0))': a random crop after both sides are multiplied by a factor from zoom;
  # a crop that is larger than the image is filled at the right and the bottom.
  # 'center': the middle.
  data.crop = 'random_resized'
  # Whether training mirrors an image left to right with probability 1/2.
  data.flip = True
  # Size of a training image before the crop. An int is the length of the short
  # side, (height, width) the exact size, and a float the exact size as a
  # multiple of data.image_size. 'center(0.875)', 'squash(0.9)' and 'border(1.0,
  # 0, 0, 0)' are timm's crop_mode and crop_pct; the last one names the values
  # of the border around an image that is not cut. None: the smallest size that
  # covers the crop.
  data.resize = config_dict.placeholder(object)
  # Size of an evaluated image before the crop, with the values of data.resize.
  data.eval_resize = config_dict.placeholder(object)
  data.map = ml_collections.ConfigDict()  # How files store label maps.
  # The stored number of each class; other numbers are ignored, like 0 in
  # ADE20K. (): numbers from 0.
  data.map.labels = ()
  # Names of the classes; the first one has label 0. (): the data has them.
  data.map.classes = ()
  # The (red, green, blue) of each class, if maps are stored as colours; other
  # colours are ignored. (): maps are stored as numbers.
  data.map.colours = ()
  # The end of the names of image files, without '.png'. An image and its map
  # have the same name apart from these ends. Cityscapes has '_leftImg8bit'.
  data.map.image_suffix = ''
  # The end of the names of map files, as data.map.image_suffix. Cityscapes has
  # '_gtFine_labelIds'.
  data.map.suffix = ''
  data.volume = ml_collections.ConfigDict()
  # Voxel spacing in mm along the axes right, anterior and superior, to which
  # scans are resampled. (): as stored.
  data.volume.spacing = ()
  # The stored values that become 0 and 1; values outside are clipped. 'type':
  # the range of uint8 or uint16. Or (low, high) in the unit of the files, such
  # as Hounsfield units; or 'percentiles(0.5, 99.5)' of each scan and modality.
  data.volume.window = config_dict.FieldReference('type', field_type=object)
  # Videos; the number of frames of a clip is the first of data.image_size.
  data.video = ml_collections.ConfigDict()
  # The frames of a clip are this many frames of the video apart.
  data.video.stride = 1
  # What happens to a video that is shorter than a clip. 'refuse': an error.
  # 'pad': its last frame is repeated.
  data.video.short = 'refuse'
  # Log-mel spectrograms of sounds, as of AST; data.image_size is (frames, mels)
  # of the model's input.
  data.audio = ml_collections.ConfigDict()
  data.audio.sample_rate = 16_000  # Samples per second.
  # Window function of the spectrogram: 'hamming' or 'hann'.
  data.audio.window = 'hamming'
  data.audio.window_ms = 25.0  # Length of the window in milliseconds.
  # Time between two frames of the spectrogram, in milliseconds.
  data.audio.hop_ms = 10.0
  # Whether files with another sample rate are resampled. False: they are an
  # error.
  data.audio.resample = True
  # What happens to a sound that is shorter than the model's input. 'refuse': an
  # error. 'pad': silence is added at its end.
  data.audio.short = 'pad'
  # Whether shrinking an image averages pixels. False: plain bilinear sampling,
  # as TensorFlow does.
  data.antialias = True
  # Filter that resizes images: 'bilinear' or 'bicubic', as Pillow's if
  # data.antialias is on. '': that of the checkpoint at init_from.path, or
  # 'bilinear' without one.
  data.interpolation = ''
  # 'timm' or 'transformers': resizing and cropping use Pillow and that
  # library's rounding of sizes and offsets, so that pixels equal the library's.
  # '': our own resizing.
  data.resize_like = ''
  # Number of processes that read and decode images. 0: threads of the main
  # process do.
  data.num_workers = 0
  # Number of threads that read and decode images. None: one per CPU core.
  data.num_threads = config_dict.placeholder(int)
  # A JSON file that `vit-jax data check --out=FILE` wrote: training skips the
  # damaged images that it lists. The `index` of the other images does not
  # change.
  data.skip_damaged = ''
  # Where decoded images of one size are kept: 'none'; 'host' (main memory); or
  # 'device' (the memory of every device). Batches do not depend on it.
  data.cache = 'none'
  return data


def _augment() -> ml_collections.ConfigDict:
  augment = ml_collections.ConfigDict()
  # Random changes of colours and geometry, after the crop. 'randaugment(2,10)'
  # has the number of layers and the magnitude, as in AugReg and big_vision.
  # 'rand(m=9, mstd=0.5, inc=1)' is timm's rand-m9-mstd0.5-inc1, with its
  # operations. Also 'trivialaugment', 'autoaugment' (the policy for CIFAR) and
  # '3augment' (of DeiT III). '': none.
  augment.policy = ''
  # Colour jitter: 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)' has the largest
  # changes of brightness, contrast, saturation and hue (of hue at most 0.5),
  # and the probability that they change an image. Each image has random
  # changes of its own. '': none.
  augment.jitter = ''
  # Probability that a crop becomes grey: one number for each crop, in the order
  # of the objective's views. The last number holds for all further crops. ():
  # never.
  augment.gray = ()
  # Probability that a crop is blurred, by a Gaussian with a standard deviation
  # of 0.1 to 2 pixels: one number for each crop, as augment.gray. (): never.
  augment.blur = ()
  # Probability that a crop is solarized, which inverts values from 128 up: one
  # number for each crop, as augment.gray. (): never.
  augment.solarize = ()
  # Random erasing: 'erase(0.25)' has the probability that a rectangle of an
  # image becomes noise. Options are area=(0.02, 1/3), the range of the fraction
  # of the image's area, and ratio=(0.3, 10/3), that of height / width. '':
  # none.
  augment.erase = ''
  # Mixup adds an image and its label to its neighbour's in the batch.
  # The weight of the neighbour is drawn from Beta(alpha, alpha), and this is
  # alpha. 0: off.
  augment.mixup = 0.0
  # CutMix pastes a rectangle of the neighbour in the batch into an image. Its
  # fraction of the area is drawn from Beta(alpha, alpha), and this is alpha. 0:
  # off.
  augment.cutmix = 0.0
  # Probability that an image is mixed, by Mixup or CutMix.
  augment.mix_probability = 1.0
  # Probability that a mixed image has CutMix, if Mixup and CutMix are both on.
  augment.cutmix_share = 0.5
  # Repeated augmentation: how often an image occurs in a batch, each time with
  # other augmentation. All copies count towards the length of an epoch.
  augment.repeats = 1
  # How training changes volumes, which nothing else augments.
  augment.volume = ml_collections.ConfigDict()
  # Probability that a crop has a voxel of a class other than the first in its
  # middle, or as near to it as the volume's border allows. Other crops have any
  # position.
  augment.volume.foreground = 0.0
  # Probability that an axis is mirrored, for each axis.
  augment.volume.flip = 0.0
  # Probability of a rotation by 90, 180 or 270 degrees in a plane of two axes,
  # for each plane in which the crop is a square.
  augment.volume.turn = 0.0
  # Intensities in [0, 1] are multiplied by 1 + x, where x is uniform between
  # minus this value and this value.
  augment.volume.scale = 0.0
  # After volume.scale, a number is added to intensities. It is uniform between
  # minus this value and this value.
  augment.volume.shift = 0.0
  # Masks of SpecAugment. A mask hides a range of frames or bands of a
  # spectrogram in training. Its length is drawn from 0 to the largest, and its
  # place is anywhere.
  augment.audio = ml_collections.ConfigDict()
  # SpecAugment: the largest number of frames that a mask hides. 0: no masks.
  augment.audio.time_mask = 0
  # SpecAugment: the largest number of mel bands that a mask hides. 0: no masks.
  augment.audio.frequency_mask = 0
  # SpecAugment: the number of masks in time, and that in frequency.
  augment.audio.masks = 1
  return augment


def _objective() -> ml_collections.ConfigDict:
  objective = ml_collections.ConfigDict()
  # The training method: the name of a file in vit_jax/objectives, such as
  # 'classification', 'distillation' or 'mae', or your own class,
  # 'my_module:MyObjective'.
  objective.name = 'classification'
  # The loss of a classifier. 'softmax': cross-entropy. 'sigmoid': a binary loss
  # for each class. 'sigmoid_any': as 'sigmoid', where the target of both
  # classes of a mixed image is 1.
  objective.loss = 'softmax'
  # The part of the target that is spread over all classes equally.
  objective.label_smoothing = 0.0
  # Weights of the classes in the training loss, one number for each class in
  # class order. If n_c of N images are in class c of K, 'balanced' is N / (K
  # n_c), and 'inverse' is proportional to 1 / n_c with mean 1 over the classes.
  # (): all weights are 1.
  objective.class_weights = config_dict.FieldReference((), field_type=object)
  # Number of images of each class, for 'balanced' and 'inverse'. None: the run
  # counts them in the training split.
  objective.class_counts = config_dict.placeholder(tuple)
  # Keys that only some objectives have; the file of an objective lists them
  # with their defaults. A config file sets one by
  # config.objective.options.delta = 2.0.
  objective.options = ml_collections.ConfigDict()
  return objective


def _train() -> ml_collections.ConfigDict:
  train = ml_collections.ConfigDict()
  # Length of the run: a number and a unit, as in '100 epochs', '10_000 steps'
  # or '1.5e6 examples'. A step is one update of the parameters.
  train.duration = '100 epochs'
  # Batch size: the number of examples of one update, over all devices and
  # microbatches.
  train.batch_size = 128
  # Gradient accumulation: the number of microbatches that a batch is split into
  # to save memory. The result is the same. 'auto': as few as fit in memory; a
  # resumed run keeps their number.
  train.accumulation = config_dict.FieldReference(1, field_type=object)
  # Number of updates that one call sends to the device. Evaluations and
  # checkpoints still happen at their own steps, between calls.
  train.steps_per_call = 1
  # Steps that differ by their number. 'patches(sizes=(8, 16))' draws the size
  # of the patches of each step (FlexiViT), and "tasks(sampling='epochs')" the
  # task of each step, of those in config.tasks (PolyViT). Or a class of your
  # own, a subclass of vit_jax.train.variant.Variant: 'my_module:MyVariant'. '':
  # all steps are alike.
  train.variant = ''
  # Time between two rows of training metrics in metrics.jsonl.
  train.log_every = '50 steps'
  # The type in which layers compute: 'float32', 'bfloat16', or 'float16' on a
  # GPU without bfloat16. Parameters stay float32. 'float16' scales the loss
  # (train/loss_scale), and needs train.skip_nonfinite.
  train.dtype = 'float32'
  # Generator of random numbers: 'threefry' or 'rbg'. 'rbg' is faster on TPU,
  # but its dropout masks depend on the mesh and on train.accumulation, which a
  # resumed run then cannot change.
  train.rng = 'threefry'
  # Decay of a moving average of the parameters (EMA). Evaluation and prediction
  # then use the average. 0: no average.
  train.ema_decay = 0.0
  # Whether the decay is at most (1 + t) / (10 + t) after t steps.
  train.ema_warmup = False
  # Whether a step is skipped if its loss or gradient is not finite. Its update
  # is discarded, and the run goes on. False: the run ends with an error.
  train.skip_nonfinite = False
  # The number of skipped steps in a row that a run survives. One more ends it
  # with an error.
  train.max_skipped_in_a_row = 20
  # Early stopping: the run ends when the metric of checkpoint.best has not
  # improved for this long, as in '10 epochs'. It is checked after each
  # evaluation. '': never. The learning rate still follows the schedule of
  # train.duration, so a run that ends early misses the low learning rates:
  # optim.schedule='constant' suits it best.
  train.patience = ''
  # Number of seconds without a step after which the run counts as hung and is
  # ended. 0: never.
  train.stall_timeout = 900
  # Classes of your own that act beside the steps, each a subclass of
  # vit_jax.train.hooks.Hook, with options: 'my_module:MyHook(every=100)';
  # several are joined by +.
  train.hooks = ''
  return train


def _optim() -> ml_collections.ConfigDict:
  optim = ml_collections.ConfigDict()
  # The optimizer, with its options: 'adamw(b2=0.95)', 'sgd(momentum=0.9)',
  # 'lamb', 'lars', 'lion', 'adafactor', 'muon' or 'adam_big_vision'. The last
  # one is Adam whose weight decay is multiplied by the schedule, scaled to a
  # maximum of 1, and not by the learning rate. Or a function of optax, as
  # 'optax:adan(b1=0.98)', or of your own, as 'my_module:my_optimizer'.
  optim.name = 'adamw'
  # The learning rate after the warm-up, which is the maximum.
  optim.learning_rate = 1e-3
  # How the learning rate changes after the warm-up. 'cosine', 'linear' and
  # 'poly(power=0.9)' fall to their option final_factor of the maximum;
  # 'step(at=(0.6, 0.85), factor=0.1)' falls at fractions of the duration;
  # 'constant' does not change; "wsd(cooldown='10 epochs')" is constant until a
  # linear cooldown; "rsqrt(timescale='10_000 steps', cooldown='10 epochs')"
  # falls as 1 / sqrt(t) until a linear cooldown. Or a function of your own, as
  # 'my_module:my_schedule', which takes the number of steps after the warm-up.
  optim.schedule = 'cosine'
  # Length of the warm-up, in which the learning rate rises linearly from
  # optim.warmup_factor of the maximum.
  optim.warmup = '0 steps'
  # The learning rate at the start of the warm-up / optim.learning_rate.
  optim.warmup_factor = 0.0
  # Whether the last step of the warm-up already has the maximum, as in DINO's
  # code. False: the step after it is the first to have it.
  optim.warmup_inclusive = False
  # Gradient clipping: the largest norm of the whole gradient. 0: no clipping.
  optim.clip_norm = 0.0
  # Gradient clipping before optim.clip_norm. 'each(3.0)': the largest norm of
  # the gradient of each parameter, as in DINO. 'adaptive(0.01)': the largest
  # norm of the gradient of a unit (one output of a layer), as a multiple of the
  # norm of its weights; heads are not clipped. '': none.
  optim.clip = ''
  # Weight decay, which is multiplied by the learning rate, as in optax.
  optim.weight_decay = 0.0
  # The weight decay at the end of the run. It changes from optim.weight_decay
  # by half a cosine, as in DINO, and decays of optim.rules change by the same
  # factor. None: it is constant.
  optim.final_weight_decay = config_dict.placeholder(float)
  # Regular expression for the paths of the parameters that have weight decay.
  # LAMB and LARS adapt the learning rate of the same parameters.
  optim.decay_pattern = r'kernel$'
  # SAM (sharpness-aware minimization): 'sam(rho=0.05)', where rho is the norm
  # of the perturbation of the parameters; or 'gsam(rho=0.6, rho_min=0.1,
  # alpha=0.6)'. With groups=2, each of 2 equal groups of the batch has a
  # perturbation of its own. '': off.
  optim.sam = ''
  # Regular expression that selects the parameters that train. It is searched
  # for in their paths, such as `blocks_3/norm1/scale`. Scanned layers have the
  # same paths, but can only be frozen all together. '': all parameters train.
  optim.trainable = ''
  # Regular expression that excludes parameters from training, with the paths of
  # optim.trainable: '^(patch_embedding|blocks_[0-5])/'.
  optim.freeze = ''
  # Layer-wise decay: the learning rate of a layer is that of the next layer
  # times this factor. The head has the full learning rate.
  optim.layer_decay = 1.0
  # Rules of (pattern, factor of the learning rate, weight decay). A decay of
  # None keeps optim.weight_decay. The first match wins:
  # (('^head/', 10.0, 0.0),)
  optim.rules = ()
  return optim


def evaluation(
  split: str = '',
  every: str = '',
  kind: str = 'accuracy',
  patch_size: int | tuple[int, int] | None = None,
) -> ml_collections.ConfigDict:
  """Returns one entry of `config.evals`.

  Args:
    split: The split that is evaluated, as in `data.split`. '': this evaluation
      is off.
    every: Time between two evaluations, as in `train.duration`. '': only at
      the end of the run.
    kind: The evaluator, with its options. 'accuracy' computes the metrics of
      the objective. "knn(train_split='train[:80%]', k=20)" (nearest
      neighbours), 'few_shot(...)' (least squares on a few images of each class)
      and 'linear(...)' (logistic regression) fit a classifier on the features
      of train_split. 'zero_shot' classifies images by captions of the classes.
      'retrieval' finds images by captions, and captions by images. Your own
      evaluator is 'my_module:MyEvaluator(option=1)'.
    patch_size: Patch size, an int or (height, width), to which the model is
      resized as by 'patches' of `train.variant`. None: the model's own.
  """
  keys = ml_collections.ConfigDict(
    {
      'split': split,
      'every': every,
      'kind': kind,
      'patch_size': config_dict.placeholder(object),
    }
  )
  keys.patch_size = patch_size
  return keys


def _checkpoint() -> ml_collections.ConfigDict:
  checkpoint = ml_collections.ConfigDict()
  checkpoint.every = '1 epochs'  # Time between two checkpoints.
  checkpoint.keep = 2  # Number of newest checkpoints that are kept, at least 2.
  # Keeps one more checkpoint in each period, as in '50 epochs'. '': none.
  checkpoint.keep_every = ''
  # Keeps the checkpoint with the best value of this metric, as in
  # 'val/accuracy'. '': none.
  checkpoint.best = ''
  return checkpoint


def _mesh() -> ml_collections.ConfigDict:
  mesh = ml_collections.ConfigDict()
  # Number of devices that split the batch (data parallelism). -1: all devices
  # that the other axes leave.
  mesh.data = -1
  # Number of devices that split both the batch and the train state (FSDP). -1:
  # all devices that the other axes leave.
  mesh.fsdp = 1
  # Number of devices that split the heads and the MLP of each layer (tensor
  # parallelism). -1: all devices that the other axes leave.
  mesh.tensor = 1
  # Sharding rules of (pattern, one axis or None for each dimension). They come
  # before the default rules of parallel/sharding.py. The first match wins:
  # (('^head/kernel$', (None, 'fsdp')),)
  mesh.rules = ()
  # Parameters with fewer elements than this are replicated on every device.
  mesh.min_size = 4096
  return mesh


def no_argument(arg: str) -> None:
  """Raises a UserError if a config file that takes no argument got one."""
  if arg:
    raise UserError(f'it takes no argument, but got {arg!r} after the colon')
