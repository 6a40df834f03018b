"""Every key of an experiment: its name, its default, what it means.

A file in `configs/` starts from `default()` and sets what differs. The result
is locked: a key that is not listed here is an error that names the nearest
known one. Each layer checks the values of its own keys.
"""

import ml_collections
from ml_collections import config_dict

from vit_jax.config.errors import UserError


def default() -> ml_collections.ConfigDict:
  """Returns every key with its default, locked.

  A leaf without a default of its own is a typed placeholder, which reads as
  None until it is set.
  """
  config = ml_collections.ConfigDict()
  config.seed = 0  # of parameters, data order, augmentation and dropout
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
  # What to start from: a file, a directory, https://, gs:// or hf:owner/name.
  config.init_from.path = ''
  # How positions are resized: 'corner', 'half_pixel', 'bicubic' or
  # 'bicubic_antialias'. '': as the code does that the checkpoint comes from.
  config.init_from.resize = ''
  config.mesh = _mesh()
  config.lock()
  config.evals.unlock()  # a config file may add evaluations of its own
  config.objective.options.unlock()  # and an objective has keys of its own
  return config


def _model() -> ml_collections.ConfigDict:
  model = ml_collections.ConfigDict()
  # Family, size and patch: `vit_jax.list_models()`. 'init_from': the model that
  # init_from.path holds.
  model.name = 'ViT-S/16'
  model.num_classes = config_dict.placeholder(int)  # None: the data's classes
  model.scan = False  # one compiled layer, run `depth` times
  model.remat = 'none'  # 'full', or a name of jax.checkpoint_policies
  # 'plain'; 'xla' or 'cudnn' of jax.nn.dot_product_attention: without dropout
  # of the weights. cuDNN's needs a GPU and train.dtype=bfloat16.
  model.attention_implementation = config_dict.placeholder(str)
  # These override what the name stands for; each belongs to the families that
  # have it. What they mean is said in models/{vit,mixer,resnet}.py.
  model.hidden_size = config_dict.placeholder(int)
  model.mlp_dim = config_dict.placeholder(int)
  model.num_heads = config_dict.placeholder(int)
  model.depth = config_dict.placeholder(int)
  model.patch_size = config_dict.placeholder(object)  # int or (h, w)
  model.pool = config_dict.placeholder(str)  # token; gap, map, token+gap
  model.position_embedding = config_dict.placeholder(str)  # learned; sincos2d
  model.position_tokens = config_dict.placeholder(str)  # all; class, patches
  model.class_token = config_dict.placeholder(bool)
  model.distillation_token = config_dict.placeholder(bool)
  model.distillation_head = config_dict.placeholder(bool)
  model.registers = config_dict.placeholder(int)
  model.pre_logits = config_dict.placeholder(int)
  model.norm_after_pool = config_dict.placeholder(bool)
  model.layer_scale = config_dict.placeholder(float)
  model.qk_norm = config_dict.placeholder(bool)
  model.qkv_bias = config_dict.placeholder(bool)
  model.gated_mlp = config_dict.placeholder(bool)
  model.gelu = config_dict.placeholder(str)  # tanh; exact
  model.layer_norm_epsilon = config_dict.placeholder(float)  # 1e-6
  model.dropout_rate = config_dict.placeholder(float)  # 0
  model.attention_dropout_rate = config_dict.placeholder(float)  # 0
  model.stochastic_depth = config_dict.placeholder(float)  # 0; linear in depth
  model.stochastic_depth_uniform = config_dict.placeholder(bool)
  model.initializers = config_dict.placeholder(str)  # the paper's; lecun; deit
  model.head_bias = config_dict.placeholder(float)  # 0; its start
  model.resnet_stages = config_dict.placeholder(tuple)  # of hybrids
  model.resnet_width = config_dict.placeholder(int)
  model.tokens_mlp_dim = config_dict.placeholder(int)  # of Mixer
  model.stages = config_dict.placeholder(tuple)  # of BiT, as those below
  model.width_factor = config_dict.placeholder(int)
  model.stem_width = config_dict.placeholder(int)
  model.channels = config_dict.placeholder(tuple)
  model.num_groups = config_dict.placeholder(int)
  model.zero_padded_pool = config_dict.placeholder(bool)
  return model


def _data() -> ml_collections.ConfigDict:
  data = ml_collections.ConfigDict()
  data.name = 'digits'  # 'digits', 'folder:PATH' or the name of a TFDS dataset
  data.dir = config_dict.placeholder(str)  # where TFDS datasets are
  data.split = 'train'  # what to train on; TFDS slices: 'train[:90%]'
  data.image_size = config_dict.FieldReference(224, field_type=object)
  # How far rare classes are drawn more often: from 0, not at all, to 1 or
  # 'classes', as often as all others; 0.5: by the square roots of their sizes.
  # An epoch is still as many draws as there are images.
  data.balance = config_dict.FieldReference(0.0, field_type=object)
  data.channels = 3  # 1: grey, 3: RGB, 4: RGB and alpha
  # Of pixels in [0, 1]: one for all channels, or one each. (): as init_from's
  # checkpoint was trained; without one, (0.5,).
  data.mean = ()
  data.std = ()
  # What becomes 0 and 1, before mean and std: 'type', the range of the stored
  # type; (low, high) in stored units; 'percentiles(0.5,99.5)' of the training
  # split. What is beyond is cut.
  data.intensity = config_dict.FieldReference('type', field_type=object)
  # These two the data decide: bits of a stored value that are kept until then,
  # 8 or 16 (None: as the images of the training split have, by the headers of
  # some), and what percentiles come to, (low, high).
  data.bits = config_dict.placeholder(int)
  data.intensity_window = ()
  # (h, w) where all stored images have one size, so that they are cropped on
  # the device. Digits and most TFDS datasets of small images say so themselves.
  data.source_size = config_dict.placeholder(object)
  # Training: 'random_resized' (crop_scale of the area, crop_ratio w/h),
  # 'random', 'pad' (by black pixels on each side, then random) or 'center':
  # these after resize.
  data.crop = 'random_resized'
  data.crop_scale = (0.08, 1.0)
  data.crop_ratio = (3 / 4, 4 / 3)
  data.pad = 4
  data.flip = True  # left to right, with probability 1/2
  # What is cut is resized before: an int is its short side, (h, w) its exact
  # size, and so is a float, as a multiple of image_size. None: it just fills
  # the crop, its ratio kept.
  data.resize = config_dict.placeholder(object)
  data.eval_resize = config_dict.placeholder(object)
  data.antialias = True  # when shrinking; False: plain bilinear, as TF does
  # 'bilinear' or 'bicubic' (Pillow's, with antialias). '': as init_from's
  # checkpoint was trained; without one, 'bilinear'.
  data.interpolation = ''
  # 'timm' or 'transformers': resize and crop with Pillow's filters and that
  # library's rounding of sizes and offsets, for pixels equal to its own.
  data.resize_like = ''
  data.num_workers = 0  # processes that read and decode; 0: threads here
  data.num_threads = config_dict.placeholder(int)  # None: one per CPU core
  # JSON that `python -m vit_jax.data check` wrote: what it lists as damaged is
  # left out. Others keep their index.
  data.skip_damaged = ''
  # Where decoded images stay, if they all have one size: 'none'; 'host', in
  # memory; 'device', on each of the devices. Batches are the same.
  data.cache = 'none'
  return data


def _augment() -> ml_collections.ConfigDict:
  augment = ml_collections.ConfigDict()
  # Of colours and shapes, after the crop, drawn for each image:
  # 'randaugment(2,10)': layers and magnitude, as AugReg and big_vision;
  # 'rand-m9-mstd0.5-inc1': as timm writes and does it; 'trivialaugment';
  # 'autoaugment', that of CIFAR; '3augment', DeiT III's. '': none.
  augment.policy = ''
  # Strengths of brightness, contrast, saturation and hue (at most 0.5), each
  # drawn for each image; (): none.
  augment.jitter = ()
  augment.erase = 0.0  # probability that a rectangle becomes noise
  augment.erase_area = (0.02, 1 / 3)  # of the image
  augment.erase_ratio = (0.3, 10 / 3)  # height / width
  # Both mix an image and its label with its neighbour's in the batch; the share
  # is drawn from Beta(alpha, alpha). 0: off.
  augment.mixup = 0.0
  augment.cutmix = 0.0
  augment.mix_probability = 1.0  # that an image is mixed at all
  augment.cutmix_share = 0.5  # of cutmix, where both are on
  # Times that a batch has each of its images; an epoch still counts rows.
  augment.repeats = 1
  return augment


def _objective() -> ml_collections.ConfigDict:
  objective = ml_collections.ConfigDict()
  objective.name = 'classification'  # or 'distillation', from a teacher
  # 'softmax'; 'sigmoid': each class by itself; or 'sigmoid_any': and both
  # classes of a mixed image are present, whatever their shares.
  objective.loss = 'softmax'
  objective.label_smoothing = 0.0
  # How much each class counts in the training loss (of the labels, where there
  # is a teacher, too): a number each, in their order; 'balanced', N / (K n_c)
  # for n_c of N images in one of K classes; 'inverse', the same but with mean 1
  # over the classes, not over the images. (): all alike.
  objective.class_weights = config_dict.FieldReference((), field_type=object)
  # Images of each class, for those; None: of the training split.
  objective.class_counts = config_dict.placeholder(tuple)
  # Of distillation. The teacher is whatever `vit_jax.load` reads.
  objective.teacher = ''
  objective.distillation = 'hard'  # the teacher's class; 'soft': its logits
  objective.teacher_weight = 0.5  # of the loss
  objective.temperature = 3.0  # of both, where it is soft
  # Keys of other objectives, which their files list with defaults; a config
  # file may set some: config.objective.options.delta = 2.0.
  objective.options = ml_collections.ConfigDict()
  return objective


def _train() -> ml_collections.ConfigDict:
  train = ml_collections.ConfigDict()
  train.duration = '100 epochs'
  train.batch_size = 128  # per update, over all devices and accumulation
  # Parts that a batch is computed in, one by one: for the same result in less
  # memory. 'auto': as few as fit; a run that is resumed keeps their number.
  train.accumulation = config_dict.FieldReference(1, field_type=object)
  # Updates that are sent to the device at once. Evaluations and checkpoints are
  # still at their own steps, between calls.
  train.steps_per_call = 1
  train.log_every = '50 steps'
  train.dtype = 'float32'  # of the computation, or 'bfloat16'
  train.rng = 'threefry'  # 'rbg': faster on TPU, but depends on the mesh
  train.ema_decay = 0.0  # of an average of the parameters; 0: none is kept
  # After t steps the decay is at most (1 + t) / (10 + t).
  train.ema_warmup = False
  train.skip_nonfinite = False  # drop a step that is not finite and go on
  train.max_skipped_in_a_row = 20  # more of them end the run, with an error
  # Ends the run when the metric of checkpoint.best has not improved for so
  # long, as '10 epochs'; it is looked at after each evaluation. '': never. The
  # schedule of the learning rate is still that of train.duration, so a run that
  # ends early has not seen its low rates: 'constant' suits it best.
  train.patience = ''
  # Seconds without a step after which a run that hangs is ended; 0: never.
  train.stall_timeout = 900
  return train


def _optim() -> ml_collections.ConfigDict:
  optim = ml_collections.ConfigDict()
  # 'adamw', 'sgd', 'lamb', 'lion', 'adafactor', 'muon', or 'adam_big_vision':
  # Adam with its weight decay multiplied by the schedule alone, which is 1 at
  # its highest.
  optim.name = 'adamw'
  optim.learning_rate = 1e-3
  # 'cosine' and 'linear', both to final_factor; 'step'; 'constant'; 'wsd',
  # constant until a linear cooldown; 'rsqrt', which falls as 1 / sqrt(t) until
  # the cooldown.
  optim.schedule = 'cosine'
  optim.warmup = '0 steps'  # linear, from 0
  optim.final_factor = 0.0  # of the learning rate, at the end
  optim.step_at = (0.6, 0.85)  # fractions of the duration
  optim.step_factor = 0.1  # at each of them
  optim.cooldown = '0 steps'  # of 'wsd' and 'rsqrt': linear, at the end
  optim.timescale = '10_000 steps'  # of 'rsqrt': how long it hardly falls
  optim.clip_norm = 0.0  # of the whole gradient; 0: no clipping
  # Of each unit's gradient, as a multiple of its weights' norm, but for heads;
  # 0: no clipping.
  optim.clip_adaptive = 0.0
  optim.weight_decay = 0.0  # multiplied by the learning rate, as optax does
  # What decays, and has its rate adapted by LAMB: a regex on the path.
  optim.decay_pattern = r'kernel$'
  optim.b1 = 0.9
  optim.b2 = 0.999  # of Lion 0.99 is usual; of Adafactor, at most
  optim.eps = 1e-8
  optim.momentum = 0.9  # of SGD, and of Muon
  # Of the first moment, or the momentum; or 'bfloat16', for half the memory.
  optim.momentum_dtype = 'float32'
  optim.nesterov = False  # of SGD
  optim.sam = _sam()
  # Patterns are searched for in the paths of parameters, `blocks_3/norm1/scale`
  # (also where the layers are scanned).
  optim.trainable = ''  # what trains: all, '^head/', 'norm', ...
  optim.freeze = ''  # what of that does not: '^(patch_embedding|blocks_[0-5])/'
  optim.layer_decay = 1.0  # of the learning rate, per layer from the head down
  # (pattern, factor of the learning rate, weight decay or None for the general
  # one), the first match wins: (('^head/', 10.0, 0.0),)
  optim.rules = ()
  return optim


def _sam() -> ml_collections.ConfigDict:
  sam = ml_collections.ConfigDict()
  sam.rho = 0.0  # length of the perturbation; 0: it is off
  # Length at the final learning rate; between, it follows the rate (GSAM).
  # None: always rho.
  sam.rho_min = config_dict.placeholder(float)
  # Of GSAM: how much is taken off of what lies across the perturbed gradient.
  sam.alpha = 0.0
  # Equal parts of the global batch, each with a perturbation of its own.
  sam.groups = 1
  return sam


def _checkpoint() -> ml_collections.ConfigDict:
  checkpoint = ml_collections.ConfigDict()
  checkpoint.every = '1 epochs'
  checkpoint.keep = 2  # newest ones, at least 2: one may turn out damaged
  checkpoint.keep_every = ''  # also keep one each, for ever: '50 epochs'
  checkpoint.best = ''  # also keep the best by a metric: 'val/accuracy'
  return checkpoint


def _mesh() -> ml_collections.ConfigDict:
  mesh = ml_collections.ConfigDict()
  # Devices along each axis; one may be -1: all that are left.
  mesh.data = -1  # that split the batch
  mesh.fsdp = 1  # that split the batch, and the train state as well
  mesh.tensor = 1  # that split the heads and the MLP of each layer
  # (pattern, an axis or None for each dimension), before the default rules in
  # sharding.py; the first match wins: (('^head/kernel$', (None, 'fsdp')),)
  mesh.rules = ()
  mesh.min_size = 4096  # elements; smaller parameters are on every device
  return mesh


def evaluation(
  split: str = '',
  every: str = '',
  kind: str = 'accuracy',
  train_split: str = '',
  k: int = 20,
  shots: tuple[int, ...] = (1, 5, 10, 25),
) -> ml_collections.ConfigDict:
  """Returns one entry of `config.evals`.

  Args:
    split: What to evaluate on, as `data.split`; '' turns the evaluation off.
    every: How often, as `train.duration`; '' means at the end alone.
    kind: 'accuracy', what the objective measures; or what is made of what the
      head reads, by a classifier that learns from `train_split`: 'knn' (nearest
      neighbours), 'few_shot' (least squares on a few images of each class) or
      'linear' (logistic regression).
    train_split: Of all kinds but 'accuracy'; has none of the images of `split`.
    k: Neighbours that vote, of 'knn'.
    shots: Numbers of images of each class, of 'few_shot'.
  """
  return ml_collections.ConfigDict(
    {
      'split': split,
      'every': every,
      'kind': kind,
      'train_split': train_split,
      'k': k,
      'shots': shots,
    }
  )


def no_argument(arg: str) -> None:
  """Raises a UserError where a config file that takes no argument got one."""
  if arg:
    raise UserError(f'it takes no argument, but got {arg!r} after the colon')
