/* Each mistake that is named must end the process; the driver looks at the message. The pointer is
 * printed first. */
#include "common.h"
#include <sched.h>

static void *say(void *p) {
    printf("%p\n", p);
    fflush(stdout);
    return opaque(p);
}
static void *free_it(void *p) {
    free(p);
    return NULL;
}

/* What was freed twice must not be handed out twice, whatever CPU has it. */
static void use_again(size_t size) {
    cpu_set_t allowed, one;
    CHECK(!sched_getaffinity(0, sizeof allowed, &allowed));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(!sched_setaffinity(0, sizeof one, &one));
        for (int i = 0; i < 10000; i++) memset(opaque(malloc(size)), 'u', size);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *what = arguments[1];
    char *p;
    setvbuf(stdout, malloc(4096), _IOFBF, 4096);
    if (!strcmp(what, "double-small")) {
        p = say(malloc(100));
        free(p);
        free(opaque(p));
    } else if (!strcmp(what, "double-later")) {
        p = say(malloc(100));
        free(p);
        for (int i = 0; i < 1000; i++) free(opaque(malloc(3000)));
        free(opaque(p));
    } else if (!strcmp(what, "double-next-but-one")) {
        p = say(malloc(100));
        char *other = opaque(malloc(100));
        free(p);
        free(other);
        free(opaque(p));
    } else if (!strcmp(what, "double-long-ago")) {
        char *others[100];
        p = say(malloc(100));
        for (int i = 0; i < 100; i++) others[i] = opaque(malloc(100));
        free(p);
        for (int i = 0; i < 100; i++) free(others[i]);
        free(opaque(p));
        use_again(100);
    } else if (!strcmp(what, "double-other-thread")) {
        pthread_t thread;
        p = say(malloc(50));
        free(p);
        pthread_create(&thread, NULL, free_it, p);
        pthread_join(thread, NULL);
        use_again(50);
    } else if (!strcmp(what, "write-after-free")) {
        p = say(malloc(100));
        free(p);
        memset(opaque(p), 1, 100);
        use_again(100);
    } else if (!strcmp(what, "double-large")) {
        p = say(malloc(1 << 20));
        free(p);
        free(opaque(p));
    } else if (!strcmp(what, "inside")) {
        p = malloc(100);
        free(say(p + 16));
    } else if (!strcmp(what, "inside-large")) {
        p = malloc(1 << 20);
        free(say(p + 65536));
    } else if (!strcmp(what, "unaligned")) {
        p = malloc(100);
        free(say(p + 1));
    } else if (!strcmp(what, "stack")) {
        char local[100];
        free(say(local));
    } else if (!strcmp(what, "wild")) {
        free(say((void *)0x123456789abcdef0));
    } else if (!strcmp(what, "static")) {
        static char memory[100];
        free(say(memory));
    } else if (!strcmp(what, "realloc-freed")) {
        p = say(malloc(1 << 20));
        free(p);
        p = realloc(opaque(p), 100);
    } else if (!strcmp(what, "realloc-inside")) {
        p = malloc(100);
        p = realloc(say(p + 8), 1000);
    } else if (!strcmp(what, "realloc-freed-small")) {
        p = say(malloc(100));
        free(p);
        p = realloc(opaque(p), 1000);
    } else if (!strcmp(what, "realloc-freed-in-place")) {
        p = say(malloc(100));
        free(p);
        p = realloc(opaque(p), 99);
    } else if (!strcmp(what, "never-handed-out")) {
        p = malloc(1500);
        free(say(p + 5 * 1536));
        use_again(1500);
    } else if (!strcmp(what, "never-handed-out-page")) {
        p = malloc(1500);
        free(say(p + 10 * 1536));
    }
    return 0;
}
