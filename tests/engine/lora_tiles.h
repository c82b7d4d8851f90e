// SPDX-License-Identifier: Apache-2.0
//
// Captured steps of an engine on the CPU, for tests of adapters (lora_tiles.c).
#ifndef MSGL_TESTS_ENGINE_LORA_TILES_H
#define MSGL_TESTS_ENGINE_LORA_TILES_H

#include "engine/internal.h"

// Captures the engine's decode steps of up to max_size requests. Its steps are submitted to slot 0
// and choose no tokens. One engine at a time; release before it is closed.
bool lora_tiles_capture(msgl_engine *e, int32_t max_size);
void lora_tiles_release(void);

#endif
