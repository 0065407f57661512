"""Sources of GPU readings: recorded traces and vendor libraries."""
