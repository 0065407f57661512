"""From measurements of a link to bandwidths at any size, world size and number of transfers at a time."""
