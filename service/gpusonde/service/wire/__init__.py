"""The wire's codec, for both ends: records as an agent encodes them and as a collector decodes them.

``blocks`` has the layout of sample batches, ``records`` decodes and checks everything else, ``model`` says what comes
of it. Decoding refuses with :class:`gpusonde.errors.WireError`, which names the field.
"""

from gpusonde.service.wire.blocks import (
    LONGEST_BLOCK_NS,
    count_ticks,
    decode_batch,
    encode_blocks,
    expand_batch,
    make_compressor,
)
from gpusonde.service.wire.fields import check_identity
from gpusonde.service.wire.model import (
    ACTIVITY_COLUMNS,
    BLANK_REASONS,
    KINDS,
    SAMPLING_CLASSES,
    UNITS,
    ActivityRecord,
    BatchRecord,
    Binding,
    BindingsRecord,
    Blanks,
    Block,
    DecodedRecord,
    EventsRecord,
    Float32Array,
    Float64Array,
    GpuEvent,
    Int64Array,
    InventoryGpu,
    InventoryRecord,
    JobActivity,
    Layout,
    Limits,
    LossRecord,
    SourceEndedRecord,
)
from gpusonde.service.wire.records import check_hello, decode_activity, decode_record

__all__ = [
    "ACTIVITY_COLUMNS",
    "BLANK_REASONS",
    "KINDS",
    "LONGEST_BLOCK_NS",
    "SAMPLING_CLASSES",
    "UNITS",
    "ActivityRecord",
    "BatchRecord",
    "Binding",
    "BindingsRecord",
    "Blanks",
    "Block",
    "DecodedRecord",
    "EventsRecord",
    "Float32Array",
    "Float64Array",
    "GpuEvent",
    "Int64Array",
    "InventoryGpu",
    "InventoryRecord",
    "JobActivity",
    "Layout",
    "Limits",
    "LossRecord",
    "SourceEndedRecord",
    "check_hello",
    "check_identity",
    "count_ticks",
    "decode_activity",
    "decode_batch",
    "decode_record",
    "encode_blocks",
    "expand_batch",
    "make_compressor",
]
