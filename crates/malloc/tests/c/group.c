/* In a control group with little memory: "fill" allocates until there is nothing more, "shape" keeps a
 * few of many small objects and then wants large ones. */
#include "common.h"

static void fill(void) {
    static char *kept[1 << 16];
    for (int round = 0; round < 3; round++) {
        int count = 0;
        errno = 0;
        while (count < 1 << 16 && (kept[count] = malloc(10000 + count % 7 * 30000))) {
            memset(kept[count], 1, 10000);
            count++;
        }
        CHECK(count > 100 && count < 1 << 16 && errno == ENOMEM);
        for (int i = 0; i < count; i++) free(kept[i]);
        /* Small ones are found among what was freed. */
        for (int i = 0; i < 1000; i++) free(opaque(malloc(100)));
        /* An operation that needs room for a moment, as long programs do. */
        char *text = malloc(1 << 20);
        CHECK(text && (text = realloc(text, 20 << 20)));
        memset(text, 2, 20 << 20);
        free(text);
    }
}

static void shape(void) {
    enum { SMALL = 40000, EACH = 200, LARGE = 100, SIZE = 1 << 20 };
    static char *small[SMALL], *large[LARGE];
    for (int i = 0; i < SMALL; i++) {
        CHECK(small[i] = malloc(4000));
        stamp(small[i], 4000, i);
        memset(small[i] + 1000, i, 3000);
        stamp(small[i], 4000, i);
    }
    for (int i = 0; i < SMALL; i++)
        if (i % EACH) free(small[i]);
    for (int i = 0; i < LARGE; i++) {
        CHECK(large[i] = malloc(SIZE));
        memset(large[i], i, SIZE);
    }
    for (int i = 0; i < SMALL; i += EACH) CHECK(stamped(small[i], 4000, i));
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "fill"))
        fill();
    else
        shape();
    return 0;
}
