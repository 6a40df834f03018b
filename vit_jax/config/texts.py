"""The keys of `config.data` for captions."""

import ml_collections
from ml_collections import config_dict

# Keys that determine how a caption becomes tokens.
KEYS = ('tokenizer', 'text_length', 'text_too_long', 'words')


def add_keys(data: ml_collections.ConfigDict) -> None:
  """Adds the keys for captions to `config.data`."""
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
