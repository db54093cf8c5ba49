"""Evictors, one file each: a module of this folder named after the method is all it takes.

An evictor is asked for by a *title*: a name (`snapkv`), a wrapper around another title
(`adakv(snapkv)`), or a class in a file (`path/to/file.py:ClassName`). Installed packages add
names through the entry-point group `page_bench.evictors`.
"""

from page_bench.evictors._registry import evictor_class, evictor_names, option_types, own_names
from page_bench.evictors._title import is_in_file, make_evictor, title_parts

__all__ = [
    "evictor_class",
    "evictor_names",
    "is_in_file",
    "make_evictor",
    "option_types",
    "own_names",
    "title_parts",
]
