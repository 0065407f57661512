-- The catalogue of a collector of schema version 1, with one run of the demo trace's first 110 s.
BEGIN TRANSACTION;
CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY, spool_id TEXT NOT NULL, instance_id TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
    host_name TEXT NOT NULL, agent_version TEXT NOT NULL, host BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE blank_counts (
    gpu_uuid TEXT NOT NULL, metric TEXT NOT NULL, reason INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, metric, reason)
) WITHOUT ROWID;
CREATE TABLE epochs (
    run_id TEXT NOT NULL, revision INTEGER NOT NULL, epoch_index INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL,
    end_unix_nano INTEGER NOT NULL, confidence REAL NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (run_id, epoch_index)
) WITHOUT ROWID;
INSERT INTO "epochs" VALUES('20231114T221340-d2987f84',1,0,1700000020500400000,1700000043700400000,9.03783295497872507517e-01,'confirmed');
INSERT INTO "epochs" VALUES('20231114T221340-d2987f84',1,1,1700000043700400000,1700000060789495000,9.03783295497872507517e-01,'confirmed');
INSERT INTO "epochs" VALUES('20231114T221340-d2987f84',1,2,1700000060789495000,1700000078003525000,9.03783295497872507517e-01,'confirmed');
INSERT INTO "epochs" VALUES('20231114T221340-d2987f84',1,3,1700000078003525000,1700000096468596000,9.03783295497872507517e-01,'confirmed');
INSERT INTO "epochs" VALUES('20231114T221340-d2987f84',1,4,1700000096468596000,1700000109950400000,9.03783295497872507517e-01,'confirmed');
CREATE TABLE gaps (
    spool INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    PRIMARY KEY (spool, first_sequence)
) WITHOUT ROWID;
CREATE TABLE gpu_events (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, item INTEGER NOT NULL, gpu_uuid TEXT NOT NULL,
    time_unix_nano INTEGER NOT NULL, kind INTEGER NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (spool, sequence, item)
) WITHOUT ROWID;
CREATE TABLE gpus (
    gpu_uuid TEXT NOT NULL, agent_id TEXT NOT NULL, message BLOB NOT NULL, metrics TEXT NOT NULL,
    PRIMARY KEY (gpu_uuid, agent_id)
) WITHOUT ROWID;
INSERT INTO "gpus" VALUES('GPU-generated-demo-t4','agent-1',X'0A154750552D67656E6572617465642D64656D6F2D74342A085465736C612054345001','["sm_active", "dram_active", "power_watts", "gpu_utilization"]');
CREATE TABLE inventories (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
INSERT INTO "inventories" VALUES(1,1,X'0801127F0A230A154750552D67656E6572617465642D64656D6F2D74342A085465736C612054345001120F0A09736D5F6163746976651001180112110A0B6472616D5F6163746976651001180112110A0B706F7765725F77617474731004180112150A0F6770755F7574696C697A6174696F6E100118011A067265706C617920A08D06');
CREATE TABLE job_bindings (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, item INTEGER NOT NULL, gpu_uuid TEXT NOT NULL,
    job_id TEXT NOT NULL, scheduler INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    labels TEXT NOT NULL, PRIMARY KEY (spool, sequence, item)
) WITHOUT ROWID;
CREATE TABLE losses (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    reason INTEGER NOT NULL, lost_ticks INTEGER NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE rejections (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, field TEXT NOT NULL, problem TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, file_name TEXT NOT NULL, PRIMARY KEY (spool, sequence)
) WITHOUT ROWID;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, gpu_uuid TEXT NOT NULL, job_id TEXT NOT NULL,
    scheduler INTEGER NOT NULL, ended INTEGER NOT NULL, end_reason TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
    end_unix_nano INTEGER NOT NULL, first_spool INTEGER NOT NULL, first_sequence INTEGER NOT NULL,
    last_spool INTEGER NOT NULL, last_sequence INTEGER NOT NULL, tick_count INTEGER NOT NULL,
    missed_ticks INTEGER NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, period_s REAL, period_low_s REAL,
    period_high_s REAL, confidence REAL NOT NULL, epoch_count INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "runs" VALUES('20231114T221340-d2987f84','agent-1','GPU-generated-demo-t4','',0,1,'the source has ended',1700000020500400000,1700000109900900000,1,22,1,111,893,0,'epochs','5 cycles of 17.59 s repeat',1.75893986992070843204e+01,1.66949997803073664211e+01,1.84837976181068022185e+01,9.03783295497872507517e-01,5);
CREATE TABLE segment_parts (
    gpu_uuid TEXT NOT NULL, spool INTEGER NOT NULL, segment INTEGER NOT NULL, row_group INTEGER NOT NULL,
    first_row INTEGER NOT NULL, row_count INTEGER NOT NULL, first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, spool, segment)
) WITHOUT ROWID;
INSERT INTO "segment_parts" VALUES('GPU-generated-demo-t4',1,1,0,0,1097,2,111,1700000000100500000,1700000109900900000);
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT, file_name TEXT NOT NULL UNIQUE, size_bytes INTEGER NOT NULL,
    row_count INTEGER NOT NULL, created_unix_nano INTEGER NOT NULL
);
INSERT INTO "segments" VALUES(1,'01795246561674051742-00000001.parquet',14942,1097,1795246561674051742);
CREATE TABLE source_ends (
    spool INTEGER NOT NULL, sequence INTEGER NOT NULL, gpu_uuid TEXT NOT NULL, PRIMARY KEY (spool, sequence, gpu_uuid)
) WITHOUT ROWID;
INSERT INTO "source_ends" VALUES(1,112,'GPU-generated-demo-t4');
CREATE TABLE spools (
    spool INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT NOT NULL, spool_id TEXT NOT NULL,
    stored_sequence INTEGER NOT NULL DEFAULT 0, UNIQUE (agent_id, spool_id)
);
INSERT INTO "spools" VALUES(1,'agent-1','spool-1',112);
CREATE TABLE tracker_positions (
    agent_id TEXT NOT NULL, gpu_uuid TEXT NOT NULL, spool INTEGER NOT NULL, sequence INTEGER NOT NULL,
    not_before_unix_nano INTEGER NOT NULL, PRIMARY KEY (agent_id, gpu_uuid)
) WITHOUT ROWID;
INSERT INTO "tracker_positions" VALUES('agent-1','GPU-generated-demo-t4',1,112,0);
CREATE INDEX segment_parts_by_time ON segment_parts (gpu_uuid, end_unix_nano, start_unix_nano);
CREATE INDEX job_bindings_by_gpu ON job_bindings (gpu_uuid, spool, sequence);
CREATE INDEX gpu_events_by_gpu ON gpu_events (gpu_uuid, time_unix_nano);
CREATE INDEX runs_by_start ON runs (start_unix_nano, run_id);
CREATE INDEX runs_by_gpu ON runs (gpu_uuid, start_unix_nano, run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('spools',1);
INSERT INTO "sqlite_sequence" VALUES('segments',1);
COMMIT;
PRAGMA user_version = 1;
