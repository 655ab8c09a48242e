/* Does a program that runs with more rights than its caller ignore what the caller's environment says?
 * Linked with the library, because such programs are not preloaded into. */
#include "common.h"
#include <sys/auxv.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    int secure = !strcmp(arguments[1], "secure");
    CHECK(!!getauxval(AT_SECURE) == secure);
    /* CONTIGUA_MALLOC_LIMIT=1MiB is set. */
    char *memory = opaque(malloc(10 << 20));
    CHECK(!memory == !secure);
    if (memory) stamp(memory, 10 << 20, 3);
    free(memory);
    return 0;
}
