"""Series that are sent to others, at an interval: what ``/metrics`` shows, and GPUs as OpenTelemetry names them."""
