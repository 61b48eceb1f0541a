"""Other libraries' objects around a stream; each module imports its library, and nothing else does."""

#: Formats whose weights can be computed with: the others pass through as bytes.
FORMATS = ("fp8_block", "fp8_channel", "mxfp8", "bf16", "fp16")
