"""Tasks from files and benchmarks: the raw side of the boundary.

Nothing here knows about learners or privacy, and training records leave only sealed.
"""

from l2dp.streams.dataset import Dataset
from l2dp.streams.permuted import permuted
from l2dp.streams.records import Protocol, Records, Sealed, Source, Space, Stream, Task
from l2dp.streams.split import split

__all__ = [
    "Dataset",
    "Protocol",
    "Records",
    "Sealed",
    "Source",
    "Space",
    "Stream",
    "Task",
    "permuted",
    "split",
]
