/* "layout": says where the heap begins. "canary": is the canary's key no simple function of the C
 * library's guards, which are the kernel's 16 random bytes? */
#include "common.h"
#include <sys/auxv.h>

static uint64_t rotated(uint64_t word, int by) {
    return by ? word << by | word >> (64 - by) : word;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "layout")) {
        printf("%p\n", opaque(malloc(3 << 20)));
        return 0;
    }
    uint64_t *object = opaque(malloc(64)), guards[2];
    free(object);
    uint64_t key = *(volatile uint64_t *)object ^ (uintptr_t)object;
    memcpy(guards, (void *)getauxval(AT_RANDOM), sizeof guards);
    CHECK(key != 0);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++) {
            uint64_t a = rotated(guards[0], i), b = rotated(guards[1], j);
            CHECK(((a ^ b) | 1) != key && ((a + b) | 1) != key && (a | 1) != key && (b | 1) != key);
        }
    return 0;
}
