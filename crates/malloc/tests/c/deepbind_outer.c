/* A library that loads another one, bound to itself first, from a directory that only its own
 * RUNPATH names. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *outer_load(void) { return dlopen("libinner.so", RTLD_NOW | RTLD_DEEPBIND); }
