/* tell.h - the outbox: what came out of generations, told behind the launch in slices. */
#ifndef ENGINE_TELL_H
#define ENGINE_TELL_H

#include "engine/state.h"

void tell_note(struct engine *e, struct gen *g);
void tell_whole(struct gen *g);
bool tell_slice(struct engine *e);

#endif
