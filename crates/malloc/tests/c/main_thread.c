/* Does a process end whose main thread calls pthread_exit, when it was the last one of the program's
 * ("last"), or when another one follows it ("first")? */
#include "common.h"
#include <time.h>

static pthread_t first;

static void *follow(void *nothing) {
    CHECK(pthread_join(first, NULL) == 0);
    for (int i = 0; i < 1000; i++) free(opaque(malloc(300000)));
    return nothing;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    first = pthread_self();
    pthread_t thread;
    if (!strcmp(arguments[1], "first")) CHECK(!pthread_create(&thread, NULL, follow, NULL));
    pthread_exit(NULL);
}
