"""A training template for TensorFlow/Keras models on Google Cloud's managed training service."""

__version__ = "0.1.0"
