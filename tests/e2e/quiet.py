"""Progress bars and notices of other packages, out of the tests' output."""

from __future__ import annotations


def quiet() -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
