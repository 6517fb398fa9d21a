# SPDX-License-Identifier: Apache-2.0
"""Loaders, one a file format: `load(sources, **options) -> Source`."""

# Name on the command line -> module; imported when it is used.
LOADERS = {
    "mnist-writers": "agnosticfl.data.loaders.mnist_writers",
    "emnist": "agnosticfl.data.loaders.emnist",
    "stackoverflow": "agnosticfl.data.loaders.stackoverflow",
    "stackexchange": "agnosticfl.data.loaders.stackexchange",
    "text-by-locale": "agnosticfl.data.loaders.text_by_locale",
    "fashion-mnist": "agnosticfl.data.loaders.fashion_mnist",
    "adult": "agnosticfl.data.loaders.adult",
    "arrays": "agnosticfl.data.loaders.arrays",
    "synthetic": "agnosticfl.data.loaders.synthetic",
}
