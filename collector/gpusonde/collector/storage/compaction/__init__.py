"""What is done with segments after they were written: compaction, averages over seconds, retention."""
