"""The class of DCGM's ``pydcgm`` that an agent needs."""

import dcgm_structs
from support.fake_dcgm.engine import Connection, current


class DcgmHandle:
    """A connection; without address and socket an engine in this process."""

    def __init__(
        self,
        handle=None,
        ipAddress=None,
        opMode=dcgm_structs.DCGM_OPERATION_MODE_AUTO,
        persistAfterDisconnect=False,
        unixSocketPath=None,
        timeoutMs=0,
    ):
        self._handleCreated = False
        engine = current()
        dcgm_structs._dcgmInit()
        address = ipAddress or unixSocketPath
        if address is None:
            dcgm_structs._dcgmCheckReturn(engine.fail("dcgmStartEmbedded") or (0 if engine.embeddable else -7))
        else:
            dcgm_structs._dcgmCheckReturn(engine.fail("dcgmConnect_v2") or (0 if engine.remote else -21))
        self.handle = Connection(engine, address or "embedded")
        self._handleCreated = True

    def __del__(self):
        if self._handleCreated:
            self.Shutdown()

    def Shutdown(self):
        if not self.handle.alive:
            raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_CONNECTION_NOT_VALID)
        connection = self.handle
        connection.alive = False
        connection.engine.connections.remove(connection)
        for watch in connection.watches.values():
            connection.engine.end(watch)
        self._handleCreated = False
        self.handle = None
