"""What lies on the disk: log parts, segments, and the few file operations that durability rests on."""
