"""loadgen: measures OpenAI-compatible streaming endpoints, and says what limits them."""

__version__ = "0.1.0"
