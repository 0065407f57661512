"""What runs inside a training process, and the only package here that imports torch (extra ``torch``)."""
