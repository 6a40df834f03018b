"""All keys of an experiment, with their defaults and meanings.

A file in `configs/` starts from `default()` and sets what differs. The result
is locked: an unknown key is an error that suggests the nearest known one. Each
package checks the values of its own keys.
"""

import ml_collections
from ml_collections import config_dict

from vit_jax.config import architecture
from vit_jax.config import evaluations
from vit_jax.config import media
from vit_jax.config import texts
from vit_jax.config.errors import UserError


def default() -> ml_collections.ConfigDict:
  """Returns every key with its default, locked.

  A key without a default is a typed placeholder: it is None until it is set.
  """
  config = ml_collections.ConfigDict()
  config.seed = 0  # for the initial parameters, data order, crops and dropout
  config.model = architecture.model()
  config.data = _data()
  config.augment = _augment()
  config.objective = _objective()
  config.train = _train()
  config.optim = _optim()
  config.evals = ml_collections.ConfigDict()
  config.evals.val = evaluations.evaluation()
  config.evals.test = evaluations.evaluation()
  config.checkpoint = _checkpoint()
  config.init_from = ml_collections.ConfigDict()
  # The checkpoint whose parameters training starts from: a file, a directory,
  # https://, gs:// or hf:owner/name. '': random parameters.
  config.init_from.path = ''
  # How positions are resized to another number of patches: 'corner',
  # 'half_pixel', 'bicubic', 'bicubic_antialias', 'dino', or 'geometric' (BEiT's
  # of relative positions). '': the method of the code that the checkpoint comes
  # from.
  config.init_from.resize = ''
  # Start only the trunk from the checkpoint, although it also has the other
  # parameters of the objective, such as a decoder.
  config.init_from.trunk_only = False
  config.mesh = _mesh()
  # Where metrics go beside metrics.jsonl: 'tensorboard', 'wandb' and 'mlflow',
  # with commas between; '': nowhere else.
  config.reporting = 'tensorboard'
  # Tasks that share one trunk, by name, each from `config.task`: its data, its
  # objective, its evaluations. Then `data`, `augment`, `objective` and `evals`
  # above only serve as their defaults. {}: one task, that of the keys above.
  config.tasks = ml_collections.ConfigDict()
  config.lock()
  config.evals.unlock()  # a config file may add evaluations of its own
  config.tasks.unlock()  # and tasks
  config.objective.options.unlock()  # each objective defines its own options
  return config


def _data() -> ml_collections.ConfigDict:
  data = ml_collections.ConfigDict()
  # 'digits'; 'scenes' of digits, with maps of classes; 'volumes' of tubes and
  # spheres, with maps; 'moving_digits', videos; 'tones', sounds; 'folder:PATH',
  # also one with images/ and masks/ of images or scans, or of the Medical
  # Segmentation Decathlon; 'video:PATH' and 'audio:PATH', folders of classes;
  # 'table:FILE' (CSV, TSV or Parquet); 'tar:shards-{000..099}.tar' or
  # 'tar:FOLDER' (WebDataset); 'hf:DIRECTORY' or 'hf:OWNER/NAME' (the datasets
  # library); the name of a TFDS dataset; or a class of your own,
  # 'my_module:MySource'.
  data.name = 'digits'
  # Columns of a table or of an hf: dataset: images (paths, or encoded bytes),
  # one class, several classes, and the split of each row (only tables). '': the
  # column with the right type or a usual name. `numbers` lists the columns of
  # numbers to predict.
  data.columns = ml_collections.ConfigDict()
  data.columns.image = ''
  data.columns.label = ''
  data.columns.labels = ''
  data.columns.map = ''  # maps of classes; data.map.classes names them
  data.columns.split = ''
  data.columns.numbers = ()
  texts.add_keys(data)
  data.dir = config_dict.placeholder(str)  # TFDS data, or cache of hf: datasets
  data.split = 'train'  # the training split, as a TFDS slice: 'train[:90%]'
  # Size of the model's input, in pixels: an int or (height, width); of volumes
  # (depth, height, width), of videos (frames, height, width), of sounds (frames
  # of the spectrogram, mels).
  data.image_size = config_dict.FieldReference(224, field_type=object)
  # Balances rare classes by drawing their images more often: 0, off; 1 or
  # 'classes', all classes equally often; 0.5, in proportion to the square roots
  # of the class sizes. The number of images in an epoch stays the same.
  data.balance = config_dict.FieldReference(0.0, field_type=object)
  # 1: grey, 3: RGB, 4: RGB and alpha; of volumes, that of the scans.
  data.channels = 3
  # Mean and standard deviation of pixels in [0, 1]: one number for all channels
  # or one per channel. (): the checkpoint's at init_from.path; without a
  # checkpoint, (0.5,).
  data.mean = ()
  data.std = ()
  # The stored values that become 0 and 1, before mean and std: 'type', the
  # range of the stored type; (low, high); or 'percentiles(0.5,99.5)' of the
  # training split. Values outside are clipped.
  data.intensity = config_dict.FieldReference('type', field_type=object)
  # Bits of a stored value that are kept when an image is decoded, 8 or 16.
  # None: taken from the headers of some training images.
  data.bits = config_dict.placeholder(int)
  # The (low, high) of intensity='percentiles(...)'. (): measured at the start.
  data.intensity_window = ()
  # (height, width) of all stored images, if they have one size; then they are
  # cropped on the device. Of volumes (depth, height, width); of moving_digits
  # (frames, height, width). None: the size that the source declares, if any.
  data.source_size = config_dict.placeholder(object)
  # How training images are cropped. 'random_resized' resizes a random
  # rectangle, whose share of the area is in crop_scale and whose width / height
  # is in crop_ratio. The other crops come after `resize`: 'random'; 'pad', a
  # random crop after `pad` black pixels are added on each side; 'scaled', a
  # random crop after both sides are multiplied by a random factor in crop_zoom,
  # filled at its right and bottom where it is larger; or 'center'.
  data.crop = 'random_resized'
  data.crop_zoom = (0.5, 2.0)
  data.crop_scale = (0.08, 1.0)
  data.crop_ratio = (3 / 4, 4 / 3)
  data.pad = 4
  data.flip = True  # flip training images left to right, with probability 1/2
  # Size before the crop, in training and in evaluation: an int is the length of
  # the short side, (height, width) the exact size, and a float the exact size
  # as a multiple of image_size. 'center(0.875)', 'squash(0.9)' and 'border(1.0,
  # 0, 0, 0)' are timm's crop_mode and crop_pct, the last with the values around
  # an image that is not cut. None: the smallest size that covers the crop.
  data.resize = config_dict.placeholder(object)
  data.eval_resize = config_dict.placeholder(object)
  # How maps of classes in a folder are stored. `labels` lists the stored number
  # of each class, `colours` the (red, green, blue) of each class; all others do
  # not count, as 0 in ADE20K. (): numbers from 0. Files have the names of their
  # images, which end with image_suffix, and maps with suffix, as in Cityscapes.
  # `classes` names the classes, the first of label 0; (): those of the folder.
  data.map = ml_collections.ConfigDict()
  data.map.labels = ()
  data.map.classes = ()
  data.map.colours = ()
  data.map.image_suffix = ''
  data.map.suffix = ''
  data.volume = ml_collections.ConfigDict()
  # Of volumes in files: the distance of neighbours along the axes right,
  # anterior and superior, in mm, to which scans are resampled. (): as stored.
  data.volume.spacing = ()
  # The values that become 0 and 1; others are clipped. 'type': the range of
  # uint8 or uint16; (low, high) in the unit of the files, as Hounsfield's; or
  # 'percentiles(0.5,99.5)' of each scan and modality.
  data.volume.window = config_dict.FieldReference('type', field_type=object)
  data.video, data.audio = media.video(), media.audio()
  data.antialias = True  # when shrinking; False: plain bilinear, as TensorFlow
  # 'bilinear' or 'bicubic' (Pillow's, with antialias). '': the checkpoint's at
  # init_from.path; without a checkpoint, 'bilinear'.
  data.interpolation = ''
  # 'timm' or 'transformers': resize and crop with Pillow's filters and that
  # library's rounding of sizes and offsets, so that pixels are equal to its
  # own.
  data.resize_like = ''
  # Processes that read and decode images; 0: threads of the main process.
  data.num_workers = 0
  data.num_threads = config_dict.placeholder(int)  # None: one per CPU core
  # A JSON file of `python -m vit_jax.data check`: the damaged images that it
  # lists are skipped. The `index` of the other images stays the same.
  data.skip_damaged = ''
  # Where decoded images of one size are kept: 'none'; 'host', in memory; or
  # 'device', on every device. It does not change the batches.
  data.cache = 'none'
  return data


def _augment() -> ml_collections.ConfigDict:
  augment = ml_collections.ConfigDict()
  # Random changes of colours and geometry, after the crop:
  # 'randaugment(2,10)': number of layers and magnitude, as in AugReg and
  # big_vision; 'rand-m9-mstd0.5-inc1': timm's syntax and operations;
  # 'trivialaugment'; 'autoaugment', the CIFAR policy; '3augment', of DeiT III.
  # '': none.
  augment.policy = ''
  # Largest changes of brightness, contrast, saturation and hue (hue: at most
  # 0.5); each image gets its own random changes. (): none.
  augment.jitter = ()
  augment.jitter_probability = 1.0  # probability that an image's colours change
  # Probabilities that an image becomes grey, is blurred (by a standard
  # deviation of 0.1 to 2 pixels) and is solarized (values from 128 up are
  # inverted): one for each crop, in the order of the objective's views; the
  # last holds for all further crops. (): none.
  augment.gray = ()
  augment.blur = ()
  augment.solarize = ()
  # Random erasing: the probability that a rectangle becomes noise, its share of
  # the image's area, and its height / width.
  augment.erase = 0.0
  augment.erase_area = (0.02, 1 / 3)
  augment.erase_ratio = (0.3, 10 / 3)
  # Mixup and CutMix mix an image and its label with those of its neighbour in
  # the batch. The neighbour's share is drawn from Beta(alpha, alpha); these are
  # the alphas. 0: off.
  augment.mixup = 0.0
  augment.cutmix = 0.0
  augment.mix_probability = 1.0  # probability that an image is mixed
  augment.cutmix_share = 0.5  # probability of cutmix if both are on
  # How often each image occurs in a batch, augmented differently each time. All
  # copies count towards the length of an epoch.
  augment.repeats = 1
  augment.volume, augment.audio = _volume(), media.masks()
  return augment


def _volume() -> ml_collections.ConfigDict:
  """Returns how training changes volumes, which nothing else augments."""
  volume = ml_collections.ConfigDict()
  # Probability that a crop has a place of a class other than the first in its
  # middle, or as near to it as the volume's border allows. Other crops are
  # anywhere.
  volume.foreground = 0.0
  volume.flip = 0.0  # probability that an axis is mirrored, for each axis
  # Probability of a turn by 90, 180 or 270 degrees, in each plane of two axes
  # in which the crop is as long.
  volume.turn = 0.0
  # Intensities in [0, 1] are multiplied by 1 plus, and then added to, uniform
  # numbers between minus these and these.
  volume.scale = 0.0
  volume.shift = 0.0
  return volume


def _objective() -> ml_collections.ConfigDict:
  objective = ml_collections.ConfigDict()
  objective.name = 'classification'  # or 'distillation', from a teacher
  # 'softmax'; 'sigmoid', a binary loss for each class; or 'sigmoid_any', where
  # the target of both classes of a mixed image is 1, whatever their shares.
  objective.loss = 'softmax'
  # Share of the target that all classes get alike.
  objective.label_smoothing = 0.0
  # Weights of the classes in the training loss. If n_c of N images are in class
  # c of K, 'balanced' is N / (K n_c), and 'inverse' is proportional to 1 / n_c
  # with mean 1 over the classes. Or one number for each class, in class order.
  # (): all are 1.
  objective.class_weights = config_dict.FieldReference((), field_type=object)
  # Number of images of each class, for 'balanced' and 'inverse'. None: counted
  # in the training split.
  objective.class_counts = config_dict.placeholder(tuple)
  # The teacher of distillation: any path that `vit_jax.load` reads.
  objective.teacher = ''
  # What the student learns from the teacher: 'hard', its class; 'soft', its
  # logits.
  objective.distillation = 'hard'
  objective.teacher_weight = 0.5  # weight of the teacher in the loss, 0 to 1
  objective.temperature = 3.0  # for 'soft': divides the logits of both models
  # Keys of other objectives; their files list them with defaults. A config file
  # may set some: config.objective.options.delta = 2.0.
  objective.options = ml_collections.ConfigDict()
  return objective


def _train() -> ml_collections.ConfigDict:
  train = ml_collections.ConfigDict()
  # Lengths of time are a number and a unit: '100 epochs', '10_000 steps' or
  # '1.5e6 examples'. A step is one update of the parameters.
  train.duration = '100 epochs'
  train.batch_size = 128  # per update: over all devices and microbatches
  # Number of microbatches that a batch is split into to save memory (gradient
  # accumulation); the result is the same. 'auto': the fewest that fit in
  # memory; a resumed run keeps their number.
  train.accumulation = config_dict.FieldReference(1, field_type=object)
  # Updates that are sent to the device in one call. Evaluations and checkpoints
  # still happen at their own steps, between calls.
  train.steps_per_call = 1
  # Of several tasks, the task of a step is drawn from the seed and the step:
  # 'epochs', in proportion to the steps of an epoch of the task's data;
  # 'uniform'; 'weighted', in proportion to config.tasks.NAME.weight; or it
  # follows their order, 'alternating'. 'accumulated': every step computes a
  # batch of each task, and uses the weighted mean of their losses.
  train.task_sampling = 'epochs'
  # Of several tasks, the number of first layers that each modality has for
  # itself; the layers after them are shared by all tasks.
  train.task_layers = 0
  # Sizes of the patch, each an int or (height, width), of which every step
  # draws one (FlexiViT): the parameters, those of the model's own patch size,
  # are resized to it. (): the model's own alone.
  train.patch_sizes = ()
  train.log_every = '50 steps'  # time between rows of metrics.jsonl
  train.dtype = 'float32'  # type in which layers compute; or 'bfloat16'
  # 'rbg' is faster on TPU, but its masks of dropout depend on the mesh and on
  # train.accumulation, which a resumed run then cannot change.
  train.rng = 'threefry'
  # Decay of a moving average of the parameters (EMA). Evaluation and prediction
  # then use the average. 0: no average.
  train.ema_decay = 0.0
  # Limit the decay to (1 + t) / (10 + t) after t steps.
  train.ema_warmup = False
  # Whether a step with a loss or gradient that is not finite is skipped: its
  # update is discarded and the run goes on. False: the run ends.
  train.skip_nonfinite = False
  train.max_skipped_in_a_row = 20  # one more ends the run with an error
  # Ends the run when the metric of checkpoint.best has not improved for this
  # long; checked after each evaluation. '': never. The learning rate still
  # follows the schedule of train.duration, so a run that ends early never
  # reaches the low learning rates: optim.schedule='constant' suits it best.
  train.patience = ''
  # A run without a step for this many seconds counts as hung and is ended; 0:
  # never.
  train.stall_timeout = 900
  return train


def _optim() -> ml_collections.ConfigDict:
  optim = ml_collections.ConfigDict()
  # 'adamw', 'sgd', 'lamb', 'lars', 'lion', 'adafactor', 'muon' or
  # 'adam_big_vision'. The last is Adam whose weight decay is multiplied by the
  # schedule, scaled to a maximum of 1, and not by the learning rate. Or a
  # function with its options: 'optax:adan(b1=0.98)', 'my_module:my_optimizer'.
  optim.name = 'adamw'
  optim.learning_rate = 1e-3  # the maximum, which is reached after the warm-up
  # 'cosine', 'linear' and 'poly', from learning_rate to final_factor of it;
  # 'step'; 'constant'; 'wsd', constant until a linear cooldown; or 'rsqrt',
  # which falls as 1 / sqrt(t) until a linear cooldown.
  optim.schedule = 'cosine'
  optim.warmup = '0 steps'  # linear, from warmup_factor of the maximum
  optim.warmup_factor = 0.0  # learning rate at the start / learning_rate
  # Whether the last step of the warm-up has the maximum already, as in DINO's
  # code, and not only the step after it.
  optim.warmup_inclusive = False
  optim.final_factor = 0.0  # final learning rate / learning_rate
  # For 'poly': the rate falls as (1 - t)^power; and whether the last step has
  # the final rate already, as in mmengine, and not only the step after it.
  optim.power = 0.9
  optim.final_inclusive = False
  # For 'step': fractions of the duration at which the learning rate is
  # multiplied by step_factor.
  optim.step_at = (0.6, 0.85)
  optim.step_factor = 0.1  # for 'step': the learning rate after / before it
  optim.cooldown = '0 steps'  # for 'wsd' and 'rsqrt': the end of the duration
  # For 'rsqrt': time until the learning rate has fallen to 1 / sqrt(2).
  optim.timescale = '10_000 steps'
  optim.clip_norm = 0.0  # largest norm of the whole gradient; 0: no clipping
  # Largest norm of the gradient of each parameter by itself, as in DINO; 0: no
  # clipping.
  optim.clip_each = 0.0
  # Adaptive clipping: largest norm of the gradient of a unit (one output of a
  # layer), as a multiple of the norm of its weights; heads are not clipped. 0:
  # no clipping.
  optim.clip_adaptive = 0.0
  optim.weight_decay = 0.0  # multiplied by the learning rate, as in optax
  # The weight decay at the end of the run, to which it changes by half a cosine
  # from weight_decay, as in DINO; decays of `rules` change by the same factor.
  # None: it stays.
  optim.final_weight_decay = config_dict.placeholder(float)
  # Regular expression for the paths of the parameters with weight decay; LAMB
  # and LARS adapt the learning rate of the same parameters.
  optim.decay_pattern = r'kernel$'
  optim.adapt_all = False  # LAMB and LARS adapt that of all parameters instead
  # For 'lars': the norm of an update before momentum, at learning rate 1, as a
  # multiple of the parameter's norm.
  optim.trust_coefficient = 1e-3
  optim.b1 = 0.9  # decay of the first moment, as of Adam and Lion
  # Decay of the second moment. Lion: usually 0.99; Adafactor: the largest.
  optim.b2 = 0.999
  optim.eps = 1e-8  # Adam and LAMB: added to the root of the second moment
  optim.momentum = 0.9  # for 'sgd', 'lars' and 'muon'
  # Type of the first moment or the momentum; 'bfloat16' halves its memory.
  optim.momentum_dtype = 'float32'
  optim.nesterov = False  # for 'sgd' and 'lars'
  optim.sam = _sam()
  # Regular expressions that are searched for in the paths of parameters, such
  # as `blocks_3/norm1/scale`. Scanned layers have the same paths, but must be
  # frozen all alike. `trainable` selects the parameters that train ('': all),
  # and `freeze` excludes some of them, as '^(patch_embedding|blocks_[0-5])/'.
  optim.trainable = ''
  optim.freeze = ''
  # The learning rate of a layer is that of the next layer times this factor;
  # the head has the full learning rate.
  optim.layer_decay = 1.0
  # Rules of (pattern, factor of the learning rate, weight decay). A decay of
  # None keeps optim.weight_decay. The first match wins:
  # (('^head/', 10.0, 0.0),)
  optim.rules = ()
  return optim


def _sam() -> ml_collections.ConfigDict:
  sam = ml_collections.ConfigDict()
  sam.rho = 0.0  # norm of the perturbation of the parameters; 0: SAM is off
  # GSAM: rho at the final learning rate. Before that, rho falls with the
  # learning rate. None: rho is constant.
  sam.rho_min = config_dict.placeholder(float)
  # GSAM: weight of the term that it subtracts, the component of the plain
  # gradient that is orthogonal to the perturbed gradient.
  sam.alpha = 0.0
  # Number of equal groups of the global batch, each with its own perturbation.
  sam.groups = 1
  return sam


def _checkpoint() -> ml_collections.ConfigDict:
  checkpoint = ml_collections.ConfigDict()
  checkpoint.every = '1 epochs'  # time between checkpoints
  checkpoint.keep = 2  # number of newest checkpoints kept; at least 2
  checkpoint.keep_every = ''  # also keep one per period: '50 epochs'
  checkpoint.best = ''  # also keep the best by this metric: 'val/accuracy'
  return checkpoint


def _mesh() -> ml_collections.ConfigDict:
  mesh = ml_collections.ConfigDict()
  # Number of devices along each axis; one may be -1, which takes all remaining
  # devices.
  mesh.data = -1  # splits the batch
  mesh.fsdp = 1  # splits the batch and the train state
  mesh.tensor = 1  # splits the heads and the MLP of each layer
  # Rules of (pattern, one axis or None for each dimension), which come before
  # the default rules of parallel/sharding.py. The first match wins:
  # (('^head/kernel$', (None, 'fsdp')),)
  mesh.rules = ()
  # Parameters with fewer elements than this are replicated on every device.
  mesh.min_size = 4096
  return mesh


def no_argument(arg: str) -> None:
  """Raises a UserError if a config file that takes no argument got one."""
  if arg:
    raise UserError(f'it takes no argument, but got {arg!r} after the colon')
