/* A library whose constructor, and whose fork handler, allocates; also opened with dlopen. */
#include "common.h"

static void *kept;
static __thread char *per_thread;

__attribute__((constructor(101))) static void begin(void) {
    kept = malloc(1000);
    stamp(kept, 1000, 5);
    free(strdup("from a constructor"));
}
__attribute__((destructor)) static void end(void) {
    CHECK(stamped(kept, 1000, 5));
    free(kept);
}
void *early_kept(void) { return kept; }
char *early_thread(void) {
    if (!per_thread) per_thread = malloc(64);
    return per_thread;
}
