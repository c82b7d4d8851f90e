# SPDX-License-Identifier: Apache-2.0
msgl_test(chat_template SOURCES test_chat_template.c LIBS msgl_tokenizer Threads::Threads)
