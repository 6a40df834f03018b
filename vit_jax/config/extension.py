"""Objects some of whose methods an extension overrides, as one that checks."""


def extend(instance: object, extension: type) -> None:
  """Lets an extension override methods of one object.

  Args:
    instance: The object; its class becomes one that inherits from both.
    extension: A class with the base of the object's. Its methods call those of
      the object by `super()`.
  """
  cls = type(instance)
  names = ('__doc__', '__module__', '__qualname__')
  members = {name: getattr(cls, name) for name in names}
  extended = type(cls.__name__, (extension, cls), members)
  object.__setattr__(instance, '__class__', extended)  # frozen ones, too
