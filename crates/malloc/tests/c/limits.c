/* Is running out of memory ENOMEM, never a crash, and does the process go on afterwards? */
#include "common.h"

static int exhaust(size_t size) {
    static void *kept[1 << 20];
    int count = 0;
    errno = 0;
    while (count < 1 << 20 && (kept[count] = malloc(size))) {
        *(volatile char *)kept[count] = 1;
        count++;
        /* Whatever limits us, it is below this; and a test must not fill the machine. */
        if (size * count > (size_t)1 << 30) {
            fprintf(stderr, "no limit for %zu bytes\n", size);
            _exit(1);
        }
    }
    int error = errno;
    for (int i = 0; i < count; i++) free(kept[i]);
    if (count < 1 << 20) CHECK(error == ENOMEM);
    return count;
}

static void *work(void *argument) {
    for (int round = 0; round < 3; round++) exhaust(argument ? 3000 : 300000);
    return NULL;
}

int main(int count, char **arguments) {
    /* "address-space", "data": the limit holds from the start. Anything else: somebody set another one. */
    CHECK(count == 2);
    int space = !strcmp(arguments[1], "address-space"), data = !strcmp(arguments[1], "data");
    if (space || data) {
        struct rlimit limit = {400 << 20, 400 << 20};
        CHECK(!setrlimit(data ? RLIMIT_DATA : RLIMIT_AS, &limit));
        execl("/proc/self/exe", arguments[0], "limited", NULL);
        return 1;
    }
    size_t sizes[] = {64, 1000, 5000, 40000, 200000, 300000, 5 << 20, 100 << 20};
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            /* Addresses in pieces may not make 100 MB in one, which is ENOMEM, too. */
            if (exhaust(sizes[i]) == 0 && (round == 0 || sizes[i] < 50 << 20)) {
                fprintf(stderr, "no %zu bytes in round %d\n", sizes[i], round);
                return 1;
            }
            CHECK(opaque(malloc((size_t)1 << 46)) == NULL && errno == ENOMEM);
            void *p = malloc(100), *q = calloc(1, 10000);
            CHECK(p && q);
            free(p);
            free(q);
        }
    pthread_t thread;
    if (!pthread_create(&thread, NULL, work, NULL)) pthread_join(thread, NULL);
    if (!pthread_create(&thread, NULL, work, (void *)1)) pthread_join(thread, NULL);
    return 0;
}
