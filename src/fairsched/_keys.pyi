from typing import final

@final
class Chunk: ...

@final
class StreamSchema: ...

@final
class Column: ...
