// SPDX-License-Identifier: Apache-2.0
//
// What a model that embeds wants around a text: the prompts of config_sentence_transformers.json,
// by names such as "query" and "document", and turns of the chat template.
#ifndef MSGL_MODELS_PROMPTS_H
#define MSGL_MODELS_PROMPTS_H

#include <stdbool.h>
#include <string.h>

#include "core/err.h"

typedef struct msgl_text_prompt {
    const char *name, *text;
} msgl_text_prompt;

typedef struct msgl_text_prompts {
    msgl_text_prompt *at; // [num] in one block with their text; owned
    int num;
    const char *usual; // what texts get that ask for none (default_prompt_name); NULL: nothing
} msgl_text_prompts;

// How a model that embeds takes a text and its prompt. In turns of its chat template: the text is
// the content of a user's turn, and its prompt, if that is not empty, that of a system's turn
// before it.
typedef struct msgl_text_form {
    bool turns;          // they stand in turns; else prompt and text are one text
    bool parts;          // contents are [{"type": "text", "text": ...}], not strings
    bool answer_begins;  // the template's add_generation_prompt
    bool without_prompt; // the prompt's tokens are not pooled; not of texts in turns
} msgl_text_form;

// Of the folder `dir`; none where it has no such file. MSGL_EFORMAT: a prompt is no string, or
// default_prompt_name is none of their names; MSGL_ELIMIT.
int msgl__text_prompts_load(const char *dir, msgl_text_prompts *out, msgl_err *err);
void msgl__text_prompts_free(msgl_text_prompts *p);

static inline const char *msgl__text_prompt(const msgl_text_prompts *p, const char *name)
{
    for (int i = 0; i < p->num; i++) {
        if (strcmp(p->at[i].name, name) == 0) return p->at[i].text;
    }
    return NULL; // there is none
}

#endif
