CREATE TABLE IF NOT EXISTS schema_version (
    version UInt32, applied DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree
ORDER BY (version)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS samples (
    gpu_uuid LowCardinality(String),
    time_unix_nano Int64 CODEC(GCD, Delta, T64, ZSTD(1)),
    time DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(time_unix_nano),
    spool Int64 CODEC(Delta, ZSTD(1)), sequence Int64 CODEC(Delta, ZSTD(1)),
    missed_ticks UInt32 CODEC(ZSTD(1)),
    received DateTime('UTC') CODEC(Delta, ZSTD(1)),
    graphics_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_occupancy Float32 DEFAULT nan CODEC(ZSTD(1)),
    tensor_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    dram_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp64_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp32_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp16_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_tx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_rx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_tx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_rx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    gpu_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    encoder_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    decoder_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    power_watts Float32 DEFAULT nan CODEC(ZSTD(1)),
    energy_joules Float64 DEFAULT nan CODEC(ZSTD(1)),
    gpu_temperature_celsius Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_temperature_celsius Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_clock_mhz Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_clock_mhz Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_used_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_free_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    bar1_free_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_replay_count Float64 DEFAULT nan CODEC(ZSTD(1)),
    clock_event_reason_bits Float32 DEFAULT nan CODEC(ZSTD(1)),
    xid_count Float64 DEFAULT nan CODEC(ZSTD(1)),
    INDEX by_position (spool, sequence) TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(received)
ORDER BY (gpu_uuid, time_unix_nano, spool, sequence)
TTL received + toIntervalSecond(1209600)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS samples_1s (
    gpu_uuid LowCardinality(String),
    time_unix_nano Int64 CODEC(GCD, Delta, T64, ZSTD(1)),
    time DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(time_unix_nano),
    spool Int64 CODEC(Delta, ZSTD(1)), sequence Int64 CODEC(Delta, ZSTD(1)),
    tick_count UInt32 CODEC(ZSTD(1)),
    missed_ticks UInt32 CODEC(ZSTD(1)),
    received DateTime('UTC') CODEC(Delta, ZSTD(1)),
    graphics_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    graphics_active_ticks UInt32 CODEC(ZSTD(1)),
    graphics_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    graphics_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_active_ticks UInt32 CODEC(ZSTD(1)),
    sm_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_occupancy Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_occupancy_ticks UInt32 CODEC(ZSTD(1)),
    sm_occupancy_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_occupancy_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    tensor_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    tensor_active_ticks UInt32 CODEC(ZSTD(1)),
    tensor_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    tensor_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    dram_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    dram_active_ticks UInt32 CODEC(ZSTD(1)),
    dram_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    dram_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp64_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp64_active_ticks UInt32 CODEC(ZSTD(1)),
    fp64_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp64_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp32_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp32_active_ticks UInt32 CODEC(ZSTD(1)),
    fp32_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp32_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp16_active Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp16_active_ticks UInt32 CODEC(ZSTD(1)),
    fp16_active_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    fp16_active_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_tx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_tx_bytes_per_second_ticks UInt32 CODEC(ZSTD(1)),
    pcie_tx_bytes_per_second_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_tx_bytes_per_second_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_rx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_rx_bytes_per_second_ticks UInt32 CODEC(ZSTD(1)),
    pcie_rx_bytes_per_second_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    pcie_rx_bytes_per_second_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_tx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_tx_bytes_per_second_ticks UInt32 CODEC(ZSTD(1)),
    nvlink_tx_bytes_per_second_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_tx_bytes_per_second_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_rx_bytes_per_second Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_rx_bytes_per_second_ticks UInt32 CODEC(ZSTD(1)),
    nvlink_rx_bytes_per_second_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    nvlink_rx_bytes_per_second_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    gpu_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    gpu_utilization_ticks UInt32 CODEC(ZSTD(1)),
    gpu_utilization_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    gpu_utilization_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_utilization_ticks UInt32 CODEC(ZSTD(1)),
    memory_utilization_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_utilization_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    encoder_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    encoder_utilization_ticks UInt32 CODEC(ZSTD(1)),
    decoder_utilization Float32 DEFAULT nan CODEC(ZSTD(1)),
    decoder_utilization_ticks UInt32 CODEC(ZSTD(1)),
    power_watts Float32 DEFAULT nan CODEC(ZSTD(1)),
    power_watts_ticks UInt32 CODEC(ZSTD(1)),
    power_watts_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    power_watts_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    energy_joules Float64 DEFAULT nan CODEC(ZSTD(1)),
    gpu_temperature_celsius Float32 DEFAULT nan CODEC(ZSTD(1)),
    gpu_temperature_celsius_ticks UInt32 CODEC(ZSTD(1)),
    memory_temperature_celsius Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_temperature_celsius_ticks UInt32 CODEC(ZSTD(1)),
    sm_clock_mhz Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_clock_mhz_ticks UInt32 CODEC(ZSTD(1)),
    sm_clock_mhz_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    sm_clock_mhz_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_clock_mhz Float32 DEFAULT nan CODEC(ZSTD(1)),
    memory_clock_mhz_ticks UInt32 CODEC(ZSTD(1)),
    framebuffer_used_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_used_bytes_ticks UInt32 CODEC(ZSTD(1)),
    framebuffer_used_bytes_min Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_used_bytes_max Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_free_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    framebuffer_free_bytes_ticks UInt32 CODEC(ZSTD(1)),
    bar1_free_bytes Float32 DEFAULT nan CODEC(ZSTD(1)),
    bar1_free_bytes_ticks UInt32 CODEC(ZSTD(1)),
    pcie_replay_count Float64 DEFAULT nan CODEC(ZSTD(1)),
    clock_event_reason_bits Float32 DEFAULT nan CODEC(ZSTD(1)),
    clock_event_reason_bits_ticks UInt32 CODEC(ZSTD(1)),
    xid_count Float64 DEFAULT nan CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(received)
ORDER BY (gpu_uuid, time_unix_nano, spool, sequence)
TTL received + toIntervalSecond(7776000)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS agents (
    agent_id String,
    spool_id String,
    instance_id String,
    start_unix_nano Int64,
    host_name String,
    agent_version String,
    host String,
    collector String,
    term Int64,
    version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (agent_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS agent_moves (
    moved DateTime('UTC') DEFAULT now(), agent_id String, collector String, term Int64, version Int64
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(moved)
ORDER BY (moved, agent_id, version)
TTL moved + toIntervalDay(1)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS spools (
    agent_id String, spool_id String, spool Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (agent_id, spool_id, spool)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS progress (
    spool Int64, sequence SimpleAggregateFunction(max, Int64)
)
ENGINE = AggregatingMergeTree
ORDER BY (spool)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS inventories (
    spool Int64, sequence Int64, message String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
ORDER BY (spool, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS gpus (
    gpu_uuid String, agent_id String, spool Int64, sequence Int64, message String CODEC(ZSTD(3)), metrics Array(LowCardinality(String))
)
ENGINE = ReplacingMergeTree
ORDER BY (gpu_uuid, agent_id, spool, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS job_bindings (
    gpu_uuid String, spool Int64, sequence Int64, item Int64, job_id String, scheduler Int64, start_unix_nano Int64, end_unix_nano Int64, labels String
)
ENGINE = ReplacingMergeTree
ORDER BY (gpu_uuid, spool, sequence, item)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS source_ends (
    gpu_uuid String, spool Int64, sequence Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (gpu_uuid, spool, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS gpu_events (
    gpu_uuid String, time_unix_nano Int64, spool Int64, sequence Int64, item Int64, kind Int64, value Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (gpu_uuid, time_unix_nano, spool, sequence, item)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS job_activity (
    spool Int64, sequence Int64, item Int64, start_unix_nano Int64, end_unix_nano Int64, message String CODEC(ZSTD(3)), received DateTime('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(received)
ORDER BY (spool, end_unix_nano, sequence, item)
TTL received + toIntervalSecond(1209600)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS losses (
    spool Int64, sequence Int64, first_sequence Int64, last_sequence Int64, reason Int64, lost_ticks Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (spool, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS gaps (
    spool Int64, first_sequence Int64, last_sequence Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (spool, first_sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS rejections (
    spool Int64, sequence Int64, field String, problem String, size_bytes Int64, file_name String
)
ENGINE = ReplacingMergeTree
ORDER BY (spool, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS quarantine (
    name String, data String CODEC(ZSTD(3)), version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (name)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS blanks (
    gpu_uuid LowCardinality(String), metric LowCardinality(String), reason Int32, spool Int64 CODEC(Delta, ZSTD(1)), sequence Int64 CODEC(Delta, ZSTD(1)), count Int64, received DateTime('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(received)
ORDER BY (gpu_uuid, metric, reason, spool, sequence)
TTL received + toIntervalSecond(1209600)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS runs (
    run_id String,
    agent_id String,
    gpu_uuid String,
    job_id String,
    scheduler Int64,
    ended Bool,
    end_reason String,
    start_unix_nano Int64,
    end_unix_nano Int64,
    first_spool Int64,
    first_sequence Int64,
    last_spool Int64,
    last_sequence Int64,
    tick_count Int64,
    missed_ticks Int64,
    verdict String,
    reason String,
    period_s Float64,
    period_low_s Float64,
    period_high_s Float64,
    confidence Float64,
    epoch_count Int64,
    idle_share Float64,
    stalled_share Float64,
    version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (run_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS epochs (
    run_id String, epoch_index Int64, start_unix_nano Int64, end_unix_nano Int64, confidence Float64, status LowCardinality(String), revision Int64, removed UInt8, version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (run_id, epoch_index)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS summaries (
    run_id String, epoch_index Int64, start_unix_nano Int64, end_unix_nano Int64, summary String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree
ORDER BY (run_id, epoch_index, start_unix_nano, end_unix_nano)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS job_states (
    run_id String, start_unix_nano Int64, state LowCardinality(String), reason String, confidence Float64, version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (run_id, start_unix_nano)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS job_alerts (
    scheduler Int64, job_id String, rule LowCardinality(String), start_unix_nano Int64, end_unix_nano Int64, reason String, agent_id String, untold UInt8, version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (job_id, scheduler, rule, start_unix_nano)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS trees (
    run_id String, tree String CODEC(ZSTD(3)), version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (run_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS tracker_positions (
    agent_id String, gpu_uuid String, spool Int64, sequence Int64, not_before_unix_nano Int64, version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (agent_id, gpu_uuid)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS tracking_states (
    agent_id String, gpu_uuid String, format UInt32, content String CODEC(ZSTD(3)), version Int64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (agent_id, gpu_uuid)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS probes (
    collector String, version Int64, data String
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (collector)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS samples_1s_of_samples TO samples_1s AS
SELECT
    gpu_uuid,
    intDiv(samples.time_unix_nano, 1000000000) * 1000000000 AS time_unix_nano,
    spool,
    sequence,
    toUInt32(count()) AS tick_count,
    toUInt32(sum(samples.missed_ticks)) AS missed_ticks,
    max(samples.received) AS received,
    avgIf(samples.graphics_active, NOT isNaN(samples.graphics_active)) AS graphics_active,
    toUInt32(countIf(NOT isNaN(samples.graphics_active))) AS graphics_active_ticks,
    ifNull(minOrNullIf(samples.graphics_active, NOT isNaN(samples.graphics_active)), nan) AS graphics_active_min,
    ifNull(maxOrNullIf(samples.graphics_active, NOT isNaN(samples.graphics_active)), nan) AS graphics_active_max,
    avgIf(samples.sm_active, NOT isNaN(samples.sm_active)) AS sm_active,
    toUInt32(countIf(NOT isNaN(samples.sm_active))) AS sm_active_ticks,
    ifNull(minOrNullIf(samples.sm_active, NOT isNaN(samples.sm_active)), nan) AS sm_active_min,
    ifNull(maxOrNullIf(samples.sm_active, NOT isNaN(samples.sm_active)), nan) AS sm_active_max,
    avgIf(samples.sm_occupancy, NOT isNaN(samples.sm_occupancy)) AS sm_occupancy,
    toUInt32(countIf(NOT isNaN(samples.sm_occupancy))) AS sm_occupancy_ticks,
    ifNull(minOrNullIf(samples.sm_occupancy, NOT isNaN(samples.sm_occupancy)), nan) AS sm_occupancy_min,
    ifNull(maxOrNullIf(samples.sm_occupancy, NOT isNaN(samples.sm_occupancy)), nan) AS sm_occupancy_max,
    avgIf(samples.tensor_active, NOT isNaN(samples.tensor_active)) AS tensor_active,
    toUInt32(countIf(NOT isNaN(samples.tensor_active))) AS tensor_active_ticks,
    ifNull(minOrNullIf(samples.tensor_active, NOT isNaN(samples.tensor_active)), nan) AS tensor_active_min,
    ifNull(maxOrNullIf(samples.tensor_active, NOT isNaN(samples.tensor_active)), nan) AS tensor_active_max,
    avgIf(samples.dram_active, NOT isNaN(samples.dram_active)) AS dram_active,
    toUInt32(countIf(NOT isNaN(samples.dram_active))) AS dram_active_ticks,
    ifNull(minOrNullIf(samples.dram_active, NOT isNaN(samples.dram_active)), nan) AS dram_active_min,
    ifNull(maxOrNullIf(samples.dram_active, NOT isNaN(samples.dram_active)), nan) AS dram_active_max,
    avgIf(samples.fp64_active, NOT isNaN(samples.fp64_active)) AS fp64_active,
    toUInt32(countIf(NOT isNaN(samples.fp64_active))) AS fp64_active_ticks,
    ifNull(minOrNullIf(samples.fp64_active, NOT isNaN(samples.fp64_active)), nan) AS fp64_active_min,
    ifNull(maxOrNullIf(samples.fp64_active, NOT isNaN(samples.fp64_active)), nan) AS fp64_active_max,
    avgIf(samples.fp32_active, NOT isNaN(samples.fp32_active)) AS fp32_active,
    toUInt32(countIf(NOT isNaN(samples.fp32_active))) AS fp32_active_ticks,
    ifNull(minOrNullIf(samples.fp32_active, NOT isNaN(samples.fp32_active)), nan) AS fp32_active_min,
    ifNull(maxOrNullIf(samples.fp32_active, NOT isNaN(samples.fp32_active)), nan) AS fp32_active_max,
    avgIf(samples.fp16_active, NOT isNaN(samples.fp16_active)) AS fp16_active,
    toUInt32(countIf(NOT isNaN(samples.fp16_active))) AS fp16_active_ticks,
    ifNull(minOrNullIf(samples.fp16_active, NOT isNaN(samples.fp16_active)), nan) AS fp16_active_min,
    ifNull(maxOrNullIf(samples.fp16_active, NOT isNaN(samples.fp16_active)), nan) AS fp16_active_max,
    avgIf(samples.pcie_tx_bytes_per_second, NOT isNaN(samples.pcie_tx_bytes_per_second)) AS pcie_tx_bytes_per_second,
    toUInt32(countIf(NOT isNaN(samples.pcie_tx_bytes_per_second))) AS pcie_tx_bytes_per_second_ticks,
    ifNull(minOrNullIf(samples.pcie_tx_bytes_per_second, NOT isNaN(samples.pcie_tx_bytes_per_second)), nan) AS pcie_tx_bytes_per_second_min,
    ifNull(maxOrNullIf(samples.pcie_tx_bytes_per_second, NOT isNaN(samples.pcie_tx_bytes_per_second)), nan) AS pcie_tx_bytes_per_second_max,
    avgIf(samples.pcie_rx_bytes_per_second, NOT isNaN(samples.pcie_rx_bytes_per_second)) AS pcie_rx_bytes_per_second,
    toUInt32(countIf(NOT isNaN(samples.pcie_rx_bytes_per_second))) AS pcie_rx_bytes_per_second_ticks,
    ifNull(minOrNullIf(samples.pcie_rx_bytes_per_second, NOT isNaN(samples.pcie_rx_bytes_per_second)), nan) AS pcie_rx_bytes_per_second_min,
    ifNull(maxOrNullIf(samples.pcie_rx_bytes_per_second, NOT isNaN(samples.pcie_rx_bytes_per_second)), nan) AS pcie_rx_bytes_per_second_max,
    avgIf(samples.nvlink_tx_bytes_per_second, NOT isNaN(samples.nvlink_tx_bytes_per_second)) AS nvlink_tx_bytes_per_second,
    toUInt32(countIf(NOT isNaN(samples.nvlink_tx_bytes_per_second))) AS nvlink_tx_bytes_per_second_ticks,
    ifNull(minOrNullIf(samples.nvlink_tx_bytes_per_second, NOT isNaN(samples.nvlink_tx_bytes_per_second)), nan) AS nvlink_tx_bytes_per_second_min,
    ifNull(maxOrNullIf(samples.nvlink_tx_bytes_per_second, NOT isNaN(samples.nvlink_tx_bytes_per_second)), nan) AS nvlink_tx_bytes_per_second_max,
    avgIf(samples.nvlink_rx_bytes_per_second, NOT isNaN(samples.nvlink_rx_bytes_per_second)) AS nvlink_rx_bytes_per_second,
    toUInt32(countIf(NOT isNaN(samples.nvlink_rx_bytes_per_second))) AS nvlink_rx_bytes_per_second_ticks,
    ifNull(minOrNullIf(samples.nvlink_rx_bytes_per_second, NOT isNaN(samples.nvlink_rx_bytes_per_second)), nan) AS nvlink_rx_bytes_per_second_min,
    ifNull(maxOrNullIf(samples.nvlink_rx_bytes_per_second, NOT isNaN(samples.nvlink_rx_bytes_per_second)), nan) AS nvlink_rx_bytes_per_second_max,
    avgIf(samples.gpu_utilization, NOT isNaN(samples.gpu_utilization)) AS gpu_utilization,
    toUInt32(countIf(NOT isNaN(samples.gpu_utilization))) AS gpu_utilization_ticks,
    ifNull(minOrNullIf(samples.gpu_utilization, NOT isNaN(samples.gpu_utilization)), nan) AS gpu_utilization_min,
    ifNull(maxOrNullIf(samples.gpu_utilization, NOT isNaN(samples.gpu_utilization)), nan) AS gpu_utilization_max,
    avgIf(samples.memory_utilization, NOT isNaN(samples.memory_utilization)) AS memory_utilization,
    toUInt32(countIf(NOT isNaN(samples.memory_utilization))) AS memory_utilization_ticks,
    ifNull(minOrNullIf(samples.memory_utilization, NOT isNaN(samples.memory_utilization)), nan) AS memory_utilization_min,
    ifNull(maxOrNullIf(samples.memory_utilization, NOT isNaN(samples.memory_utilization)), nan) AS memory_utilization_max,
    avgIf(samples.encoder_utilization, NOT isNaN(samples.encoder_utilization)) AS encoder_utilization,
    toUInt32(countIf(NOT isNaN(samples.encoder_utilization))) AS encoder_utilization_ticks,
    avgIf(samples.decoder_utilization, NOT isNaN(samples.decoder_utilization)) AS decoder_utilization,
    toUInt32(countIf(NOT isNaN(samples.decoder_utilization))) AS decoder_utilization_ticks,
    avgIf(samples.power_watts, NOT isNaN(samples.power_watts)) AS power_watts,
    toUInt32(countIf(NOT isNaN(samples.power_watts))) AS power_watts_ticks,
    ifNull(minOrNullIf(samples.power_watts, NOT isNaN(samples.power_watts)), nan) AS power_watts_min,
    ifNull(maxOrNullIf(samples.power_watts, NOT isNaN(samples.power_watts)), nan) AS power_watts_max,
    ifNull(argMaxOrNullIf(samples.energy_joules, samples.time_unix_nano, NOT isNaN(samples.energy_joules)), nan) AS energy_joules,
    avgIf(samples.gpu_temperature_celsius, NOT isNaN(samples.gpu_temperature_celsius)) AS gpu_temperature_celsius,
    toUInt32(countIf(NOT isNaN(samples.gpu_temperature_celsius))) AS gpu_temperature_celsius_ticks,
    avgIf(samples.memory_temperature_celsius, NOT isNaN(samples.memory_temperature_celsius)) AS memory_temperature_celsius,
    toUInt32(countIf(NOT isNaN(samples.memory_temperature_celsius))) AS memory_temperature_celsius_ticks,
    avgIf(samples.sm_clock_mhz, NOT isNaN(samples.sm_clock_mhz)) AS sm_clock_mhz,
    toUInt32(countIf(NOT isNaN(samples.sm_clock_mhz))) AS sm_clock_mhz_ticks,
    ifNull(minOrNullIf(samples.sm_clock_mhz, NOT isNaN(samples.sm_clock_mhz)), nan) AS sm_clock_mhz_min,
    ifNull(maxOrNullIf(samples.sm_clock_mhz, NOT isNaN(samples.sm_clock_mhz)), nan) AS sm_clock_mhz_max,
    avgIf(samples.memory_clock_mhz, NOT isNaN(samples.memory_clock_mhz)) AS memory_clock_mhz,
    toUInt32(countIf(NOT isNaN(samples.memory_clock_mhz))) AS memory_clock_mhz_ticks,
    avgIf(samples.framebuffer_used_bytes, NOT isNaN(samples.framebuffer_used_bytes)) AS framebuffer_used_bytes,
    toUInt32(countIf(NOT isNaN(samples.framebuffer_used_bytes))) AS framebuffer_used_bytes_ticks,
    ifNull(minOrNullIf(samples.framebuffer_used_bytes, NOT isNaN(samples.framebuffer_used_bytes)), nan) AS framebuffer_used_bytes_min,
    ifNull(maxOrNullIf(samples.framebuffer_used_bytes, NOT isNaN(samples.framebuffer_used_bytes)), nan) AS framebuffer_used_bytes_max,
    avgIf(samples.framebuffer_free_bytes, NOT isNaN(samples.framebuffer_free_bytes)) AS framebuffer_free_bytes,
    toUInt32(countIf(NOT isNaN(samples.framebuffer_free_bytes))) AS framebuffer_free_bytes_ticks,
    avgIf(samples.bar1_free_bytes, NOT isNaN(samples.bar1_free_bytes)) AS bar1_free_bytes,
    toUInt32(countIf(NOT isNaN(samples.bar1_free_bytes))) AS bar1_free_bytes_ticks,
    ifNull(argMaxOrNullIf(samples.pcie_replay_count, samples.time_unix_nano, NOT isNaN(samples.pcie_replay_count)), nan) AS pcie_replay_count,
    avgIf(samples.clock_event_reason_bits, NOT isNaN(samples.clock_event_reason_bits)) AS clock_event_reason_bits,
    toUInt32(countIf(NOT isNaN(samples.clock_event_reason_bits))) AS clock_event_reason_bits_ticks,
    ifNull(argMaxOrNullIf(samples.xid_count, samples.time_unix_nano, NOT isNaN(samples.xid_count)), nan) AS xid_count
FROM samples
GROUP BY gpu_uuid, time_unix_nano, spool, sequence;

INSERT INTO schema_version (version) VALUES (1);

