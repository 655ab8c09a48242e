/* Strings are built piece by piece, copied, joined and dropped, as in an interpreter. */
#include "bench.h"

int main(void) {
    enum { WORDS = 50000 };
    static char *words[WORDS];
    uint64_t random = 17;
    for (int round = 0; round < 30; round++)
        for (int i = 0; i < WORDS; i++) {
            char buffer[64];
            snprintf(buffer, sizeof buffer, "%llx", (unsigned long long)next_random(&random));
            char *word = strdup(buffer);
            if (i % 8 == 0 && words[i]) {
                size_t length = strlen(words[i]), more = strlen(word);
                if (length < 2000) {
                    char *joined = malloc(length + more + 1);
                    memcpy(joined, words[i], length);
                    memcpy(joined + length, word, more + 1);
                    free(word);
                    word = joined;
                }
            }
            free(words[i]);
            words[i] = word;
        }
}
