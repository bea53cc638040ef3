from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from fairsched._routing import _Key, _Keys

def jump_hash(key: _Key, buckets: SupportsIndex) -> int: ...
def jump_hash_many(keys: _Keys, buckets: SupportsIndex) -> NDArray[np.int32]: ...
