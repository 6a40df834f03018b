"""Suggests a config key for an unknown one.

The unknown key may be a name from another library, or a misspelling. If no key
is similar, none is suggested, since a wrong suggestion is worse than none.
"""

from collections.abc import Collection
import difflib
import re

import ml_collections

from vit_jax.config.errors import UserError
from vit_jax.config.keys import flatten
from vit_jax.config.keys import value_at

# Least similarity by difflib: 'learning_rat' has 0.96 with 'learning_rate',
# 'epochs' 0.67 with 'eps'.
_LEAST_SIMILARITY = 0.75
_MANY = 5  # most keys with the same last part that are all shown

# Keys with their names in timm, torchvision, Keras, Lightning, transformers,
# big_vision and vit_jax 0.1.0. An example follows a key whose values are
# written differently.
_CALLED = """
augment.cutmix: cutmix_alpha
augment.erase = 'erase(0.25)': reprob random_erasing random_erase erasing cutout
augment.erase = 'erase(0.25, area=(0.02, 1/3), ratio=(0.3, 3.3))': erase_area
    erase_ratio
augment.blur: gaussian_blur blur_probability
augment.gray: grayscale greyscale grey random_grayscale
augment.jitter = 'jitter(0.4, 0.4, 0.4, 0.1)': color_jitter colour_jitter
    jitter_strength
augment.jitter = 'jitter(0.4, 0.4, 0.4, 0.1, probability=0.8)':
    jitter_probability
augment.mixup: mixup_alpha mix_up
augment.solarize: solarization solarize_probability
augment.policy = 'randaugment(2,10)': augmentation augmentations aug aa
    autoaugment auto_augment randaugment rand_augment randaug trivialaugment
    augmix
checkpoint.best = 'val/accuracy': save_best monitor best_metric
checkpoint.every = '1 epochs': save_every save_freq save_interval save_steps
    checkpoint_every ckpt_every ckpt_steps checkpoint_interval
checkpoint.keep: max_to_keep keep_checkpoints save_total_limit
data.channels: in_chans in_channels num_channels
data.crop = 'random_resized(ratio=(3/4, 4/3))': ratio aspect_ratio
    crop_ratio
data.crop = 'random_resized(scale=(0.08, 1.0))': scale rrc_scale
    crop_scale
data.crop = 'pad(4)': pad
data.crop = 'scaled(zoom=(0.5, 2.0))': crop_zoom
data.dir: data_dir tfds_data_dir
data.eval_resize: crop_pct resize_size eval_size test_size
data.flip: hflip horizontal_flip random_flip
data.image_size: img_size imgsz input_size input_shape image_shape resolution
    res crop_size size
data.name = 'folder:PATH': data data_dir dataset datasets data_set dataset_name
    data_path data_root dataset_path dataset_dir data_folder image_folder images
    root train_dir train_data
data.num_workers: workers n_workers dataloader_workers loader_workers
evals.test.split: test_split test_data
evals.val.every: eval_every val_every eval_freq eval_interval eval_steps
    val_interval val_freq
evals.val.kind = "knn(train_split='train', k=20)": k train_split
evals.val.kind = "few_shot(train_split='train', shots=(1, 5))": shots
evals.val.kind = "linear(train_split='train', features='tokens')": features
evals.val.kind = "zero_shot(templates='a photo of a {}.')": templates
evals.val.split: val_split validation_split val_data valid_split
init_from.path = 'FILE': checkpoint pretrained pretrained_path pretrain
    init_checkpoint init_from init_weights weights ckpt ckpt_path
    checkpoint_path load load_from model_path finetune finetune_from resume_from
mesh.data: mesh devices num_devices gpus num_gpus n_gpus
model.attention_dropout_rate: attn_drop attn_drop_rate attention_dropout
    attn_dropout attention_probs_dropout_prob
model.attention = 'attention(qk_norm=True)': qk_norm
model.attention = 'attention(qkv_bias=False)': qkv_bias key_bias
model.attention = 'attention(causal=True)': causal
model.attention = 'attention(out_norm=True)': attention_norm
model.attention = 'grouped(key_heads=1)': key_heads full_key_layers
model.attention = 'differential': differential
model.block = 'block(layer_scale=0.1)': layer_scale layer_scale_mlp
    stochastic_depth_uniform
model.block = 'branches(2)': branches
model.block = 'merging(2)': merge merge_decreasing merge_proportional
model.block = 'parallel': parallel_mlp
model.block = 'post_norm': post_norm
model.depth: layers num_layers n_layers n_layer num_hidden_layers
model.dropout_rate: dropout drop drop_rate hidden_dropout_prob
model.head = 'linear(bias=-6.9)': head_bias
model.head = 'linear(distillation=False)': distillation_head
model.head = 'linear(pre_logits=768)': pre_logits
model.head = "linear(norm='batch')": head_norm
model.hidden_size: embed_dim emb_dim hidden_dim dim width d_model
model.mlp = "mlp(gelu='exact')": gelu
model.mlp = 'experts(8)': experts routing
model.mlp = 'experts(8, capacity=1.05)': expert_capacity
model.mlp = 'experts(8, layers=(2, 4))': expert_layers
model.mlp = 'experts(8, loss=0.01)': expert_loss
model.mlp = 'experts(8, noise=1.0)': expert_noise
model.mlp = 'experts(8, per_token=2)': experts_per_token
model.mlp = 'experts(8, priority=True)': expert_priority
model.mlp = "experts(8, routing='soft', slots=1)": expert_slots
model.mlp = 'mlp(bias=False)': dense_bias
model.mlp = 'mlp(hidden_norm=True)': mlp_norm
model.mlp = 'swiglu': gated_mlp gate
model.mlp_dim: mlp_ratio intermediate_size ffn_dim
model.name: model arch architecture backbone network net variant model_name
model.name = 'iGPT-S(colours=64)': feature_layer has_clusters
model.name = 'Mixer-S/16(tokens_mlp_dim=256)': tokens_mlp_dim
model.name = 'BiT-R50x1(num_groups=32)': num_groups stem_width width_factor
    zero_padded_pool stages
model.num_classes: classes nb_classes n_classes num_labels nclasses num_class
model.num_heads: heads n_heads n_head nheads num_attention_heads
model.patch_size: patch patches patch_dim
model.patches = 'hybrid(stages=(3, 4, 9), width=64)': resnet_stages resnet_width
model.patches = 'normed': patch_norm
model.patches = 'patches(bias=False)': patch_bias
model.patches = 'patches(crop=True)': crop_to_patches
model.pool = 'map(num_heads=8)': map_heads map_mlp_dim map_prefix map_query
    map_bias
model.pool = 'mean(norm_after=True)': norm_after_pool
model.positions = "learned(resize='bicubic')": position_resize
model.positions = 'learned(grid=(14, 14))': position_grid
model.positions = 'learned(keep_aspect=True)': position_aspect
model.positions = 'sincos2d': position_embedding
model.positions = "learned(tokens='patches')": position_tokens
model.positions = 'learned + relative_bias': relative_positions
model.positions = 'relative_mlp_bias(hidden_dim=128)': relative_mlp_dim
model.positions = 'rope(base=100.0)': rotary rotary_base rotary_grid
    rotary_offset
model.remat = 'full': grad_checkpointing gradient_checkpointing grad_checkpoint
    activation_checkpointing
model.stochastic_depth: drop_path drop_path_rate droppath
objective.label_smoothing: smoothing label_smooth
objective.loss: criterion loss_fn bce bce_loss
objective.name: objective
optim.clip = 'adaptive(0.01)': clip_adaptive
optim.clip = 'each(3.0)': clip_each
optim.clip_norm: clip_grad grad_clip clip_grad_norm gradient_clip
    gradient_clip_val grad_clip_norm max_grad_norm gradient_clipping clipping
optim.layer_decay: llrd layer_lr_decay layerwise_lr_decay lr_layer_decay
optim.learning_rate: lr base_lr blr peak_lr max_lr init_lr learn_rate
optim.name = 'adamw(b1=0.9)': b1 beta1 beta_1 adam_beta1 betas
optim.name = 'adamw(b2=0.999)': b2 beta2 beta_2 adam_beta2
optim.name = 'adamw(eps=1e-8)': eps epsilon adam_epsilon opt_eps
optim.name = 'lars(trust_coefficient=0.001)': trust_coefficient adapt_all
optim.name = 'sgd(momentum=0.9)': momentum nesterov momentum_dtype
optim.name: optim opt optimizer optimiser optimizer_name
optim.sam = 'gsam(rho=0.6, rho_min=0.1, alpha=0.6)': rho_min
optim.sam = 'sam(rho=0.05)': sam rho sam_rho
optim.schedule = 'cosine(final_factor=0.01)': min_lr lr_min final_lr
    final_factor
optim.schedule = 'poly(power=0.9)': power final_inclusive
optim.schedule = 'step(at=(0.6, 0.85), factor=0.1)': step_at step_factor
optim.schedule = "rsqrt(timescale='10_000 steps')": timescale
optim.schedule = "wsd(cooldown='10 epochs')": cooldown
optim.schedule: sched scheduler lr_schedule lr_scheduler schedule_type lr_policy
    decay decay_type lr_scheduler_type
optim.trainable = '^head/': freeze_backbone linear_probe freeze_encoder
    train_head_only
optim.warmup = '5 epochs': warm_up warmup_epochs warmup_steps num_warmup_steps
    warmup_ratio warmup_iters lr_warmup_epochs
optim.weight_decay: wd weightdecay decay_rate l2 l2_reg
seed: random_seed random_state rng_seed manual_seed rng
train.accumulation: accum_iter accum accum_steps grad_accum grad_accum_steps
    accumulate gradient_accumulation gradient_accumulation_steps
    accumulate_grad_batches accumulation_steps iter_size
train.batch_size: bs batch batchsize train_batch_size global_batch_size
    batch_size_per_gpu per_device_batch_size per_device_train_batch_size
    minibatch_size
train.dtype = 'bfloat16': bf16 amp use_amp precision mixed_precision
train.dtype = 'float16' with train.skip_nonfinite=True: fp16 half half_precision
train.duration = '10 epochs': epochs epoch num_epochs n_epochs nb_epochs
    max_epochs total_epochs num_train_epochs train_epochs
train.duration = '10_000 steps': steps num_steps max_steps total_steps
    train_steps training_steps num_train_steps iterations iters max_iters
    num_iters
train.ema_decay: ema model_ema ema_rate use_ema model_ema_decay polyak
train.log_every = '50 steps': log_interval log_freq print_freq print_every
    logging_steps log_steps
train.patience = '10 epochs': early_stopping early_stop early_stopping_patience
train.variant = 'patches((8, 16))': patch_sizes
train.variant = 'tasks(layers=2)': task_layers
train.variant = "tasks(sampling='uniform')": task_sampling
"""
_KEYS_OF: dict[str, list[str]] = {}
for _entry in re.split(r'\n(?! )', _CALLED.strip()):
  _key, _names = re.split(r':\s+', _entry, maxsplit=1)
  for _name in _names.split():
    _KEYS_OF.setdefault(_name, []).append(_key)
# Names for which the command has a flag, and the config no key.
_FLAG_OF = dict.fromkeys(
  (
    'output_dir save_dir out_dir outdir output out log_dir logdir run_dir'
    ' exp_dir save_path work_dir workdir results_dir resume experiment'
  ).split(),
  '--workdir=PATH',
)


def suggest(key: str, keys: Collection[str], prefix: str = '') -> str:
  """Ends a message on an unknown key: "did you mean 'optim.learning_rate'?".

  Args:
    key: The unknown key, as `lr`, `optim.lr` or `learning-rate`.
    keys: All keys, dotted.
    prefix: Put before each key shown: '--config.' on the command line.
  """
  lower = key.lower().replace('-', '_')
  name = lower.rpartition('.')[2]
  if lower in keys:
    return _ask([lower], prefix)
  same_name_keys = [x for x in keys if x.rpartition('.')[2] == name]
  called = [x for x in _KEYS_OF.get(name, ()) if x.partition(' ')[0] in keys]
  is_group = lower in _KEYS_OF  # 'data': a group, elsewhere data.name
  if called and (is_group or not same_name_keys):
    return _ask(called, prefix)
  if 0 < len(same_name_keys) <= _MANY:
    return _ask(same_name_keys, prefix)
  if name in _FLAG_OF:
    return f'it is {_FLAG_OF[name]}, a flag of the command'
  matches = difflib.get_close_matches(
    lower, keys, n=1, cutoff=_LEAST_SIMILARITY
  )
  ends = {x.rpartition('.')[2]: x for x in keys}
  matches += [
    ends[x]
    for x in difflib.get_close_matches(
      name, ends, n=1, cutoff=_LEAST_SIMILARITY
    )
  ]
  if matches and not same_name_keys:
    return _ask(matches[:1], prefix)
  group = sorted(x for x in keys if x.startswith(f'{lower}.'))
  return f'it is a group of keys, as {prefix}{group[0]}' if group else ''


def keys_called(name: str) -> list[str]:
  """Returns the keys that other libraries call by a name, as 'lr'."""
  entries = _KEYS_OF.get(name.lower().replace('-', '_').replace(' ', '_'), ())
  return [x.partition(' ')[0] for x in entries]


def field_meant(name: str, field_names: Collection[str]) -> str:
  """Returns a suggestion for an unknown field of a model, or ''."""
  if is_checkpoint(name):
    return 'a model with its weights is vit_jax.load(PATH or name)'
  keys = keys_called(name)
  fields = [x.removeprefix('model.') for x in keys]
  if fields := [x for x in fields if x in field_names]:
    return _ask(fields, '')
  if keys:
    return f'it is no part of the model, but config.{keys[0]}'
  return ''


def is_checkpoint(name: str) -> bool:
  """Whether a flag of this name, in other libraries, names a checkpoint."""
  entries = [*_KEYS_OF.get(name, ()), _FLAG_OF.get(name, '')]
  return any(
    x.startswith(('init_from.path', 'model.name', '--workdir')) for x in entries
  )


def _ask(entries: list[str], prefix: str) -> str:
  phrases = []
  for entry in entries:
    key, _, value = entry.partition(' = ')
    phrases.append(repr(prefix + key))
    if value:
      value = value.replace(' with ', f' with {prefix}')
      phrases[-1] += f', as in {prefix}{key}={value}'
  return f'did you mean {" or ".join(phrases)}?'


def explain(config: ml_collections.ConfigDict, error: Exception) -> str:
  """Explains what ml_collections says of a key or of its value.

  Returns:
    '' if the error is another one.
  """
  if match := re.search(r'Key "(\w+)" does not exist', str(error)):
    return str(unknown_key(config, match[1]))
  match = re.search(
    r"override field '(\w+)'.*?\. (.*) is of original type <class '(\w+)'>.*"
    r" type <class '(\w+)'>",
    str(error),
    re.DOTALL,
  )
  if not match or not isinstance(error, TypeError):
    return ''
  leaf, value, actual, expected = match.groups()
  names = [x for x, _ in flatten(config) if x.rpartition('.')[2] == leaf]
  name = f'config.{names[0]}' if len(names) == 1 else leaf
  example = value_at(config, names[0]) if len(names) == 1 else None
  hint = '' if example is None else f', as {example!r}'
  return (
    f'{name} is {value}, of type {actual}: it must be of type {expected}{hint}'
  )


def unknown_key(config: ml_collections.ConfigDict, key: str) -> UserError:
  """Returns the error for an unknown key; it suggests a similar key."""
  names = [name for name, _ in flatten(config)]
  suggestion = suggest(key, names)
  hint = suggestion or 'all keys are in vit_jax/config/defaults.py'
  if key.startswith('model.') and ', as in ' not in hint:
    hint += (
      ". Options of a part are in its text, as model.attention='attention("
      "qk_norm=True)'"
    )
  return UserError(f'config has no key {key!r}: {hint}')
