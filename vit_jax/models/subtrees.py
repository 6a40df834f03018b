"""Parts of a tree of parameters by path, such as the trunk of a method."""

from typing import Any

from flax import traverse_util


def at(tree: Any, path: str) -> Any:
  """Returns the subtree at a path such as 'student/backbone'; '': the tree."""
  for key in filter(None, path.split('/')):
    tree = tree[key]
  return tree


def remainder(tree: Any, path: str) -> dict[str, Any]:
  """Returns what a tree has beside the subtree at a path; {} where it is ''."""
  if not path:
    return {}
  flat = traverse_util.flatten_dict(tree, sep='/')
  leaves = {k: x for k, x in flat.items() if not k.startswith(f'{path}/')}
  return traverse_util.unflatten_dict(leaves, sep='/')


def joined(subtree: Any, path: str, other_leaves: Any) -> Any:
  """Returns a tree with a subtree at a path, and what is beside it."""
  for key in reversed([key for key in path.split('/') if key]):
    subtree = {key: subtree}
  flat = traverse_util.flatten_dict(subtree, sep='/')
  flat |= traverse_util.flatten_dict(other_leaves, sep='/')
  return traverse_util.unflatten_dict(flat, sep='/')
