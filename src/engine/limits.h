/* limits.h - what an engine asks of its configuration, and of the plans of its runner. */
#ifndef ENGINE_LIMITS_H
#define ENGINE_LIMITS_H

#include "base/err.h"
#include "engine/engine.h"

int limits_check(const struct engine_config *config, struct err *err);

#endif
