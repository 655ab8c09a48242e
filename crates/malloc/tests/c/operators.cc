// Do all forms of new and delete work, and does a failing new throw or call the handler?
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

struct alignas(128) Wide {
    char bytes[256];
};
static int calls;
static void handler() {
    if (++calls == 3) std::set_new_handler(nullptr);
}
static volatile std::size_t huge = std::size_t(1) << 50;

int main() {
    for (int i = 0; i < 1000; i++) {
        auto *wide = new Wide;
        CHECK(reinterpret_cast<std::uintptr_t>(wide) % 128 == 0);
        delete wide;
        auto *several = new Wide[3];
        CHECK(reinterpret_cast<std::uintptr_t>(several) % 128 == 0);
        delete[] several;
        delete new int(i);
        delete[] new char[i + 1];
        ::operator delete(::operator new(i, std::nothrow), std::nothrow);
        ::operator delete[](::operator new[](i, std::nothrow), std::nothrow);
        ::operator delete(::operator new(i), std::size_t(i));
        ::operator delete(::operator new(i, std::align_val_t(64)), i, std::align_val_t(64));
        ::operator delete[](::operator new[](i, std::align_val_t(64), std::nothrow),
                            std::align_val_t(64), std::nothrow);
    }
    bool caught = false;
    try {
        ::operator delete(::operator new(huge));
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    CHECK(caught);
    CHECK(::operator new(huge, std::nothrow) == nullptr);
    caught = false;
    std::set_new_handler(handler);
    try {
        ::operator delete[](::operator new[](huge, std::align_val_t(4096)));
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    CHECK(caught && calls == 3);
    std::vector<std::thread> threads;
    for (int number = 0; number < 8; number++)
        threads.emplace_back([number] {
            std::map<std::string, std::vector<int>> map;
            for (int i = 0; i < 20000; i++) map[std::to_string(i * number % 997)].push_back(i);
            std::size_t total = 0;
            for (auto &[name, values] : map) total += values.size();
            CHECK(total == 20000);
        });
    for (auto &thread : threads) thread.join();
    auto shared = std::make_shared<std::string>(100000, 'x');
    CHECK(shared->size() == 100000);
}
