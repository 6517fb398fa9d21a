# SPDX-License-Identifier: Apache-2.0
"""Token ids that are no words: what text data, language models and metrics must agree on."""

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3  # then K words, 3 … K+2, and K+3 for all others (OOV)
