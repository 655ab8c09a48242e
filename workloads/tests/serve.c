/* A server for tests: serve PORT answers each message with a byte, after it has read memory at random; a
   message that begins with q ends it. */
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORDS = 1 << 20, READS = 1000 };

static uint64_t memory[WORDS];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

int main(int argc, char **argv)
{
    int port = argc > 1 ? atoi(argv[1]) : 0;
    int yes = 1;
    uint64_t random = 1, sum = 0;
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0)
        fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0)
        fail("bind");
    if (listen(listener, 16) < 0)
        fail("listen");
    for (size_t i = 0; i < WORDS; i++)
        memory[i] = i;
    for (;;) {
        char text[64];
        ssize_t length;
        int connection = accept(listener, NULL, NULL);
        if (connection < 0)
            fail("accept");
        while ((length = read(connection, text, sizeof(text))) > 0) {
            if (text[0] == 'q')
                return 0;
            for (int i = 0; i < READS; i++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                sum += memory[random >> 44];
            }
            text[0] = (char)sum;
            if (write(connection, text, 1) != 1)
                fail("write");
        }
        close(connection);
    }
}
