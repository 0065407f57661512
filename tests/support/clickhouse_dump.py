"""Print, as JSON, what a stopped collector has left in a directory of chdb: a process holds one such directory only.

``python clickhouse_dump.py DIRECTORY DATABASE AGENT GPU``
"""

import json
import sys

from gpusonde.collector.config import ClickHouseConfig, StoreConfig
from gpusonde.collector.storage.clickhouse.facts import Ownership
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.collector.storage.clickhouse.store import ClickHouseStore
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry

directory, database, agent_id, gpu_uuid = sys.argv[1:]
store = ClickHouseStore(
    ClickHouseSql(ClickHouseConfig(f"chdb://{directory}", database)),
    Ownership("reader"),
    StoreConfig(),
)
store.open()
arrivals = store.samples.read_feed(agent_id, gpu_uuid, Position(0, 0))
pieces = [arrival.samples for arrival in arrivals if isinstance(arrival, TicksEntry)]
print(
    json.dumps(
        {
            "sequences": [s for piece in pieces for s in piece.sequence.tolist()],
            "times": [t for piece in pieces for t in piece.time_unix_nano.tolist()],
            "read": store.samples.read(gpu_uuid, 0, 1 << 62).time_unix_nano.tolist(),
            "losses": len(store.facts.losses()),
            "rejections": len(store.facts.rejections()),
        }
    )
)
store.close()
