#include "fuzz/fuzz.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "obs/log.h"

// Of the sanitizers, where one is linked: called before they end the process.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace mooncake::fuzz {
namespace {

constexpr size_t kShownBytesMax = 4096;

// Of this thread, since the check began.
thread_local uint64_t allocated_bytes = 0;

// What is being tried, for a handler that runs when the process crashes.
struct Current {
  std::string where;  // The test, and how to try it again.
  const std::string* input = nullptr;
};
Current current;

std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes.substr(0, kShownBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  if (bytes.size() > kShownBytesMax) hex += "...";
  return hex;
}

std::string Described(const std::string& input) {
  return current.where + "\ninput of " + std::to_string(input.size()) + " bytes: " + Hex(input) +
         "\n";
}

void TellInput() {
  if (current.input == nullptr) return;
  const std::string text = "\n" + Described(*current.input);
  (void)!write(STDERR_FILENO, text.data(), text.size());
  current.input = nullptr;
}

// The process is lost, so what a handler may not do is done all the same.
void OnSignal(int signal) {
  TellInput();
  (void)::signal(signal, SIG_DFL);
  (void)raise(signal);
}

// On a stack of its own, as the other one may be what has run out.
void Watch(int fatal) {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  (void)sigaction(fatal, &action, nullptr);
}

void WatchForCrashes() {
  static const bool once = [] {
    static std::array<char, size_t{64} << 10> stack;
    const stack_t other = {.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
    (void)sigaltstack(&other, nullptr);
    for (const int fatal : {SIGABRT, SIGALRM}) Watch(fatal);
    if (&__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(TellInput);
    } else {
      for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) Watch(fatal);
    }
    // What the parsers have to say about rubbish would bury the rest.
    obs::SetLogLevel(obs::LogLevel::kOff);
    (void)google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  (void)once;
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string HowToRepeat(uint64_t seed) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return "MC_FUZZ_SEED=" + std::to_string(seed) +
         " fuzz_parsers --gtest_filter=" + test->test_suite_name() + "." + test->name();
}

std::string Checked(const Target& target, const std::string& input) {
  std::string wrong;
  allocated_bytes = 0;
  (void)alarm(kInputSecondsMax);
  try {
    wrong = target.check(input);
  } catch (const std::exception& thrown) {
    wrong = std::string("it throws: ") + thrown.what();
  }
  (void)alarm(0);
  const uint64_t allocated = allocated_bytes;
  const uint64_t allocated_max =
      target.allocated_bytes_max + target.allocated_per_byte_max * input.size();
  if (wrong.empty() && allocated > allocated_max) {
    wrong = "it allocates " + std::to_string(allocated) + " bytes, at most " +
            std::to_string(allocated_max) + " are expected";
  }
  return wrong;
}

// False: it failed, and the test says so.
bool Try(const Target& target, const std::string& where, const std::string& input) {
  current.where = where;
  current.input = &input;
  const std::string wrong = Checked(target, input);
  current.input = nullptr;
  if (wrong.empty()) return true;
  ADD_FAILURE() << wrong << "\n" << Described(input);
  return false;
}

}  // namespace

void* Counted(size_t size, size_t alignment) {
  allocated_bytes += size;
  void* memory = alignment == 0 ? std::malloc(size == 0 ? 1 : size)
                                : std::aligned_alloc(
                                      alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void RunTarget(const Target& target) {
  WatchForCrashes();
  ASSERT_FALSE(target.samples.empty());
  const uint64_t only = FromEnvironment("MC_FUZZ_SEED", UINT64_MAX);
  if (only == UINT64_MAX) {
    for (const std::string& sample : target.samples) {
      if (!Try(target, "a sample, as it is", sample)) return;
    }
  }
  const uint64_t first = only != UINT64_MAX ? only : FromEnvironment("MC_FUZZ_FIRST", 0);
  const uint64_t wanted = FromEnvironment("MC_FUZZ_ROUNDS", kRoundsDefault);
  const uint64_t rounds = only != UINT64_MAX ? 1 : (wanted + target.cost - 1) / target.cost;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    Random random(seed);
    const std::string input =
        target.make ? target.make(random) : InputFrom(target.samples, target.format, random);
    if (!Try(target, HowToRepeat(seed), input)) return;
  }
}

std::string WrongError(const Error& error, ErrorCode code, std::string_view named) {
  if (error.code != code) return "the error is " + error.ToString();
  if (error.context.find(named) == std::string::npos) {
    return "the error does not name " + std::string(named) + ": " + error.context;
  }
  return kRight;
}

bool Leaks(const std::string& input, const std::string& text) {
  const size_t begin = input.find("://");
  const size_t password = input.find(std::string(":") + std::string(kPassword), begin);
  const size_t at = input.rfind('@');
  // Where there are two of them, one may be meant for a path.
  const bool one = input.find(kPassword) == input.rfind(kPassword);
  const bool inside = begin != std::string::npos && password != std::string::npos &&
                      at != std::string::npos && begin < password && password < at;
  return one && inside && text.find(kPassword) != std::string::npos;
}

}  // namespace mooncake::fuzz

// Each allocation of C++ counts. The sanitizers see the malloc behind it.
void* operator new(size_t size) { return mooncake::fuzz::Counted(size, 0); }
void* operator new[](size_t size) { return mooncake::fuzz::Counted(size, 0); }
void* operator new(size_t size, std::align_val_t alignment) {
  return mooncake::fuzz::Counted(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return mooncake::fuzz::Counted(size, static_cast<size_t>(alignment));
}
// The default ones would do, if a sanitizer did not have its own.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size | 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return std::malloc(size | 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
