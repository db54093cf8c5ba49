"""Documents of a task that are made when they are first read.

lm-eval takes the length, the field names and the first document of every task it constructs, and
walks over all documents to reach those that `--limit` or `--samples` ask for. So the documents
exist from the start, and are empty until somebody looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, overload


class LazyDoc(dict[str, Any]):
    """A document whose values are made when one of them is first read.

    To templates, JSON, pickle and copies it is a dict of its fields.

    Args:
        fields: its keys.
        make: returns the document.
    """

    def __init__(self, fields: Sequence[str], make: Callable[[], dict[str, Any]]) -> None:
        super().__init__(dict.fromkeys(fields))
        self._fields = fields
        self._make: Callable[[], dict[str, Any]] | None = make

    def _filled(self) -> dict[str, Any]:
        if self._make is not None:
            super().update(self._make())
            self._make = None
        return {key: super(LazyDoc, self).__getitem__(key) for key in self._fields}

    def __getitem__(self, key: str) -> Any:
        if self._make is not None:
            self._filled()
        return super().__getitem__(key)

    # With an `__iter__` of its own, a dict is copied by `__getitem__` and not by its slots.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self._filled()
        return super().get(key, default)

    def items(self) -> Any:
        return self._filled().items()

    def values(self) -> Any:
        return self._filled().values()

    def copy(self) -> dict[str, Any]:
        return self._filled()

    def __or__(self, other: Any) -> Any:
        return self._filled() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._filled()

    def __eq__(self, other: object) -> bool:
        return self._filled() == (other._filled() if isinstance(other, LazyDoc) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(self._filled())

    def __reduce__(self) -> Any:
        return dict, (self._filled(),)


class LazyDocs(Sequence[LazyDoc]):
    """The documents of a task, in order.

    Args:
        fields: the keys of each.
        document: key → document.
        keys: one per document, such as its row.
    """

    def __init__(
        self, fields: Sequence[str], document: Callable[[int], dict[str, Any]], keys: Sequence[int]
    ) -> None:
        self._fields = fields
        self._docs = [LazyDoc(fields, partial(document, key)) for key in keys]

    @property
    def features(self) -> dict[str, None]:
        """The names of the fields, as the keys of a dict: all that lm-eval looks at."""
        return dict.fromkeys(self._fields)

    def __len__(self) -> int:
        return len(self._docs)

    @overload
    def __getitem__(self, place: int) -> LazyDoc: ...
    @overload
    def __getitem__(self, place: slice) -> list[LazyDoc]: ...
    def __getitem__(self, place: int | slice) -> LazyDoc | list[LazyDoc]:
        return self._docs[place]
