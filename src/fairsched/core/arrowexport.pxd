"""Export columns as an Arrow record batch, through the C data interface.

All structures of a batch are in one block, which also owns the buffers of its columns. Each may be moved, and released
on its own, in any order; the last release frees the block. Batches share a dictionary of texts.

Source: "The Arrow C data interface", Apache Arrow columnar format 1.4, sections "Released structure", "Moving an array"
and "Release callback semantics".

Thread safety: a structure belongs to one thread at a time, but those of a batch, and batches with the same dictionary,
may be released by several threads at once, without the GIL: their reference counts are atomic.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from fairsched.core.arrowdata cimport ArrowArray

ctypedef struct ArrowTexts:  # what a dictionary holds, none of them null
    atomic[int64_t] users
    int64_t count
    int32_t* offsets
    char* data

ctypedef struct ArrowBlock:
    atomic[int64_t] left   # structures that are not released
    int64_t columns
    ArrowTexts* texts      # of the dictionary; NULL: no column has one
    ArrowArray* arrays     # one a column, and behind them the dictionary
    ArrowArray** children  # where these are
    const void** buffers   # three a column, and behind them those of the dictionary, and of the batch

cdef inline void arrow_texts_leave(ArrowTexts* texts) noexcept nogil:
    """Release a reference to a dictionary; the last one frees it."""
    if texts.users.fetch_sub(1) == 1:
        free(texts.offsets)
        free(texts.data)
        free(texts)

cdef inline void arrow_block_leave(ArrowBlock* block) noexcept nogil:
    """Note that a structure is released; with the last one goes the block."""
    cdef int64_t i
    if block.left.fetch_sub(1) > 1:
        return
    for i in range(3 * block.columns):
        free(<void*> block.buffers[i])
    if block.texts != NULL:
        arrow_texts_leave(block.texts)
    free(block)

cdef inline void arrow_release(ArrowArray* array) noexcept nogil:
    """Release callback of a structure: release the children that were not moved away, then the structure."""
    cdef ArrowBlock* block = <ArrowBlock*> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
    if array.dictionary != NULL and array.dictionary.release != NULL:
        array.dictionary.release(array.dictionary)
    array.release = NULL
    arrow_block_leave(block)

cdef inline void arrow_describe(ArrowBlock* block, ArrowArray* array, int64_t rows, int64_t buffers) noexcept nogil:
    """Fill in what all structures have."""
    array.length = rows
    array.n_buffers = buffers
    array.release = arrow_release
    array.private_data = block
    block.left.fetch_add(1)

cdef inline ArrowBlock* arrow_batch(ArrowArray* batch, int64_t rows, int64_t columns) noexcept nogil:
    """Begin a batch, of which `arrow_batch_column` is to add each column; NULL: memory is exhausted.

    It may be released at any moment from then on.
    """
    cdef size_t arrays = (columns + 1) * sizeof(ArrowArray), children = columns * sizeof(ArrowArray*)
    cdef char* memory = <char*> calloc(1, sizeof(ArrowBlock) + arrays + children + (3 * columns + 4) * sizeof(void*))
    cdef ArrowBlock* block = <ArrowBlock*> memory
    if memory == NULL:
        return NULL
    block.columns = columns
    block.arrays = <ArrowArray*> (memory + sizeof(ArrowBlock))
    block.children = <ArrowArray**> (memory + sizeof(ArrowBlock) + arrays)
    block.buffers = <const void**> (memory + sizeof(ArrowBlock) + arrays + children)
    arrow_describe(block, batch, rows, 1)
    batch.null_count = batch.n_children = 0
    batch.buffers = block.buffers + 3 * columns + 3
    batch.children = block.children
    batch.dictionary = NULL
    return block

cdef inline ArrowArray* arrow_batch_column(
    ArrowBlock* block, ArrowArray* batch, int64_t nulls, void* there, void* offsets, void* data
) noexcept nogil:
    """Add a column, which owns its buffers from now on: offsets of texts, or none. Buffers are of malloc."""
    cdef int64_t at = batch.n_children
    cdef ArrowArray* column = &block.arrays[at]
    cdef const void** buffers = block.buffers + 3 * at
    arrow_describe(block, column, batch.length, 3 if offsets != NULL else 2)
    column.null_count = nulls
    column.buffers = buffers
    buffers[0] = there
    buffers[1] = offsets if offsets != NULL else data
    buffers[2] = data if offsets != NULL else NULL
    block.children[at] = column
    batch.n_children += 1
    return column

cdef inline void arrow_batch_dictionary(ArrowBlock* block, ArrowArray* column, ArrowTexts* texts) noexcept nogil:
    """Say what the numbers of a column stand for; once in a batch."""
    cdef ArrowArray* dictionary = &block.arrays[block.columns]
    cdef const void** buffers = block.buffers + 3 * block.columns
    arrow_describe(block, dictionary, texts.count, 3)
    texts.users.fetch_add(1)
    block.texts = texts
    buffers[1] = texts.offsets
    buffers[2] = texts.data
    dictionary.buffers = buffers
    column.dictionary = dictionary
