/* A library that allocates and frees on behalf of others. */
#include <stdlib.h>
#include <string.h>

static char *early;
__attribute__((constructor)) static void begin(void) { early = strdup("early"); }
__attribute__((destructor)) static void end(void) { free(early); }

void *inner_make(size_t size) { return malloc(size); }
void *inner_change(void *memory, size_t size) { return realloc(memory, size); }
void inner_end(void *memory) { free(memory); }
char *inner_early(void) { return strdup(early); }
