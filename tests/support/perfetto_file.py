"""A file for Perfetto as Perfetto's own schema reads it, out of the package ``perfetto``."""

from __future__ import annotations

import ast
import importlib.util
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet


def _schema():
    found = importlib.util.find_spec("perfetto")
    if found is None:
        pytest.skip("the package perfetto is not installed")
    (folder,) = found.submodule_search_locations
    # Its generated code asks for a newer protobuf than ours; what it holds, the serialised schema, does not.
    text = Path(folder, "protos/perfetto/trace/perfetto_trace_pb2.py").read_text(encoding="utf-8")
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    (call,) = (call for call in calls if getattr(call.func, "attr", "") == "AddSerializedFile")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(ast.literal_eval(call.args[0]))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.Trace"))


class PerfettoFile:
    """Tracks by uuid, and what lies on each.

    ``slices``, ``instants`` and ``counters`` are track uuid -> list of (begin, end, name), (time, name), (time, value)
    in seconds. Slices of a track that overlap, events on a track that nobody has described and fields that the schema
    does not know are errors.
    """

    def __init__(self, path: Path):
        trace = _schema().FromString(path.read_bytes())
        self.tracks, open_slices = {}, defaultdict(list)
        self.slices, self.instants, self.counters = defaultdict(list), defaultdict(list), defaultdict(list)
        packets = [packet for packet in trace.packet if packet.HasField("track_event")]
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id
            assert not len(UnknownFieldSet(packet))
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks
                assert not track.parent_uuid or track.parent_uuid in self.tracks
                name = track.process.process_name or track.name
                self.tracks[track.uuid] = SimpleNamespace(
                    name=name, parent=track.parent_uuid or None, unit=track.counter.unit_name
                )
        # As Perfetto sorts them.
        for packet in sorted(packets, key=lambda each: each.timestamp):
            event, at = packet.track_event, packet.timestamp / 1e9
            assert packet.HasField("timestamp")
            assert not len(UnknownFieldSet(event))
            assert event.track_uuid in self.tracks
            if event.type == event.TYPE_SLICE_BEGIN:
                assert not open_slices[event.track_uuid]
                open_slices[event.track_uuid].append((at, event.name))
            elif event.type == event.TYPE_SLICE_END:
                begin, name = open_slices[event.track_uuid].pop()
                self.slices[event.track_uuid].append((begin, at, name))
            elif event.type == event.TYPE_INSTANT:
                self.instants[event.track_uuid].append((at, event.name))
            else:
                assert event.type == event.TYPE_COUNTER
                assert event.HasField("double_counter_value")
                self.counters[event.track_uuid].append((at, event.double_counter_value))
        assert not any(open_slices.values())

    def uuid(self, name, parent=None):
        """The track whose name begins so."""
        (found,) = (
            uuid
            for uuid, track in self.tracks.items()
            if track.name.startswith(name) and (parent is None or track.parent == parent)
        )
        return found
