// Measures TcpTransport against bare sockets with the same sizes, two processes on loopback:
//
//   transport_bench [milliseconds per cell] [name filter] [option=value ...]
//
// `raw` is a blocking ping-pong or stream in the style of C: write, read, nothing else. Raw and
// transport take turns in short rounds, so that both see the same machine. `sum` adds XXH3 over
// the payload on the calling side. Options are those of TcpOptions that shape the transfer:
// buffer, send, receive (bytes). rawtuned=1 gives the raw sockets the congestion control that the
// transport picks on one host, else they have the system's. pin=same puts both processes on one
// processor, pin=split on two, so that the scheduler's choice does not decide the comparison. Not a
// test: numbers of a busy machine say nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "runtime/real_runtime.h"
#include "transfer/tcp/socket.h"
#include "transfer/tcp/tcp_transport.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStoreSize = 64u << 20;
constexpr size_t kRoundsMax = 400;
constexpr size_t kSamplesMax = 200'000;

struct Request {
  uint64_t put;
  uint64_t offset;
  uint64_t size;  // Of one piece.
  uint64_t pieces;
};

std::byte* NewStore(int value) {
  void* memory =
      mmap(nullptr, kStoreSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MC_CHECK(memory != MAP_FAILED);
  (void)madvise(memory, kStoreSize, MADV_HUGEPAGE);
  std::memset(memory, value, kStoreSize);
  return static_cast<std::byte*>(memory);
}

// The raw side.

bool ReadAll(int fd, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = ::read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t put = ::write(fd, at, size);
    if (put <= 0) return false;
    at += put;
    size -= static_cast<size_t>(put);
  }
  return true;
}

void ServeRaw(int listener, std::byte* store, bool raw_tuned) {
  const int fd = ::accept(listener, nullptr, nullptr);
  TuneConnection(fd, 0);
  if (raw_tuned) TuneSameHost(fd);
  Request request;
  while (ReadAll(fd, &request, sizeof request)) {
    const uint64_t total = request.size * request.pieces;
    std::byte* at = store + request.offset;
    const bool good =
        request.put != 0 ? ReadAll(fd, at, total) && WriteAll(fd, "k", 1) : WriteAll(fd, at, total);
    if (!good) break;
  }
  ::close(fd);
}

void RawCall(int fd, const Request& request, std::byte* memory) {
  const uint64_t total = request.size * request.pieces;
  if (request.put == 0) {
    MC_CHECK(WriteAll(fd, &request, sizeof request) && ReadAll(fd, memory, total));
    return;
  }
  iovec parts[2] = {{const_cast<Request*>(&request), sizeof request}, {memory, total}};
  const ssize_t sent = ::writev(fd, parts, 2);
  MC_CHECK(sent >= static_cast<ssize_t>(sizeof request));
  const size_t done = static_cast<size_t>(sent) - sizeof request;
  char ack = 0;
  MC_CHECK(WriteAll(fd, memory + done, total - done) && ReadAll(fd, &ack, 1));
}

// The transport's side.

class StoreCall final : public ServerCall {
 public:
  StoreCall(std::byte* store, const IncomingRequest& incoming) : store_(store) {
    std::memcpy(&request_, incoming.message.data(), sizeof request_);
    if (request_.put != 0) Slice(pieces_);
  }
  bool Prepare(bool) override { return true; }
  std::span<const MutableBytes> PayloadTargets() override { return pieces_; }
  bool Run(bool, Reply& reply) override {
    reply.message = "k";
    if (request_.put == 0) Slice(reply.payload);
    return true;
  }

 private:
  template <typename Pieces>
  void Slice(Pieces& pieces) const {
    for (uint64_t i = 0; i < request_.pieces; ++i) {
      pieces.emplace_back(store_ + request_.offset + i * request_.size, request_.size);
    }
  }
  std::byte* const store_;
  Request request_;
  std::vector<MutableBytes> pieces_;
};

class StoreService final : public Service {
 public:
  explicit StoreService(std::byte* store) : store_(store) {}
  std::unique_ptr<ServerCall> Accept(const IncomingRequest& incoming) override {
    if (incoming.message.size() != sizeof(Request)) return nullptr;
    return std::make_unique<StoreCall>(store_, incoming);
  }

 private:
  std::byte* const store_;
};

class BenchObserver final : public CallObserver {
 public:
  explicit BenchObserver(bool sum) : sum_(sum) {}
  void Use(std::span<const MutableBytes> pieces) { pieces_ = pieces; }
  void OnSend(size_t, ConstBytes chunk) override {
    if (sum_) stream_.Update(chunk);
  }
  void OnReceive(size_t, ConstBytes chunk) override {
    if (sum_) stream_.Update(chunk);
  }
  Result<std::span<const MutableBytes>> OnReply(std::string_view, uint64_t size) override {
    return size == 0 ? std::span<const MutableBytes>() : pieces_;
  }

 private:
  const bool sum_;
  base::ChecksumStream stream_;
  std::span<const MutableBytes> pieces_;
};

struct Client {
  TcpTransport& transport;
  std::string endpoint;
  int raw_fd;
  std::byte* memory;
  uint64_t cell_ns;
  Runtime& runtime;
};

void TransportCall(Client& client, const Request& request, BenchObserver& observer,
                   std::span<const MutableBytes> pieces, std::span<const ConstBytes> sent) {
  observer.Use(pieces);
  Call call;
  call.endpoint = client.endpoint;
  call.message = {reinterpret_cast<const char*>(&request), sizeof request};
  if (request.put != 0) call.payload = sent;
  call.deadline_ms = client.runtime.NowMs() + 60'000;
  call.observer = &observer;
  client.transport.CallMany({&call, 1});
  MC_CHECK(call.status.ok());
}

struct Samples {
  std::vector<double> us;
  double Percentile(double part) {
    std::sort(us.begin(), us.end());
    return us[static_cast<size_t>(static_cast<double>(us.size() - 1) * part)];
  }
};

void Report(std::string_view name, uint64_t total, Samples& raw, Samples& ours) {
  const double raw_us = raw.Percentile(0.5), ours_us = ours.Percentile(0.5);
  const double gib = static_cast<double>(total) / (1u << 30) * 1e6;
  fmt::print(
      "{:<18} raw {:8.1f} us {:6.2f} GiB/s   ours {:8.1f} us {:6.2f} GiB/s   p99 {:8.1f} / "
      "{:8.1f} us   time ratio {:5.2f}   speed ratio {:5.2f}   n {}\n",
      name, raw_us, gib / raw_us, ours_us, gib / ours_us, raw.Percentile(0.99),
      ours.Percentile(0.99), ours_us / raw_us, raw_us / ours_us, ours.us.size());
  std::fflush(stdout);
}

void Measure(Client& client, const std::string& name, Request request, bool sum) {
  const uint64_t total = request.size * request.pieces;
  BenchObserver observer(sum);
  std::vector<MutableBytes> pieces(request.pieces);
  std::vector<ConstBytes> sent(request.pieces);
  Samples raw, ours;
  const uint64_t end_ns = client.runtime.NowNs() + 2 * client.cell_ns;
  uint64_t step = 0;
  auto one = [&](bool transport, Samples& samples) {
    request.offset = step++ * total % (kStoreSize - total + 1) & ~uint64_t{4095};
    for (uint64_t i = 0; i < request.pieces; ++i) {
      pieces[i] = {client.memory + request.offset + i * request.size, request.size};
      sent[i] = pieces[i];
    }
    const uint64_t start_ns = client.runtime.NowNs();
    if (transport) {
      TransportCall(client, request, observer, pieces, sent);
    } else {
      RawCall(client.raw_fd, request, client.memory + request.offset);
    }
    const uint64_t took_ns = client.runtime.NowNs() - start_ns;
    if (samples.us.size() < kSamplesMax) samples.us.push_back(static_cast<double>(took_ns) / 1e3);
  };
  for (size_t round = 0; round < kRoundsMax && client.runtime.NowNs() < end_ns; ++round) {
    const uint64_t round_ns = client.cell_ns / 20;
    for (bool transport : {false, true}) {
      const uint64_t until_ns = client.runtime.NowNs() + round_ns;
      one(transport, transport ? ours : raw);
      while (client.runtime.NowNs() < until_ns) one(transport, transport ? ours : raw);
    }
  }
  Report(name, total, raw, ours);
}

void MeasureAll(Client& client, std::string_view filter) {
  struct Shape {
    const char* name;
    uint64_t size, pieces;
  };
  const Shape shapes[] = {{"64", 64, 1},           {"4K", 4096, 1},        {"64K", 65536, 1},
                          {"1M", 1u << 20, 1},     {"8M", 8u << 20, 1},    {"128x4K", 4096, 128},
                          {"128x64K", 65536, 128}, {"1024x4K", 4096, 1024}};
  for (const Shape& shape : shapes) {
    for (uint64_t put : {0, 1}) {
      for (bool sum : {false, true}) {
        const std::string name =
            fmt::format("{} {}{}", put != 0 ? "put" : "get", shape.name, sum ? " sum" : "");
        if (name.find(filter) == std::string::npos) continue;
        Measure(client, name, {put, 0, shape.size, shape.pieces}, sum);
      }
    }
  }
}

void Pin(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  MC_CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

int Main(int argc, char** argv) {
  TcpOptions options;
  std::string filter;
  std::string pin;
  bool raw_tuned = false;
  uint64_t cell_ms = 400;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const size_t equals = arg.find('=');
    const auto number = [&] { return std::strtoul(argv[i] + equals + 1, nullptr, 10); };
    if (equals == std::string_view::npos) {
      if (i == 1) cell_ms = std::strtoul(argv[i], nullptr, 10);
      if (i == 2) filter = arg;
    } else if (arg.starts_with("pin")) {
      pin = arg.substr(equals + 1);
    } else if (arg.starts_with("rawtuned")) {
      raw_tuned = number() != 0;
    } else if (arg.starts_with("buffer")) {
      options.buffer_bytes = static_cast<int>(number());
    } else if (arg.starts_with("send")) {
      options.send_chunk_bytes = static_cast<uint32_t>(number());
    } else if (arg.starts_with("receive")) {
      options.receive_chunk_bytes = static_cast<uint32_t>(number());
    }
  }
  uint16_t raw_port = 0;
  UniqueFd raw_listener = ListenOn("127.0.0.1", raw_port, 0).value();
  // ListenOn's descriptor does not block; accept waits for the parent by trying.
  int ports[2];
  MC_CHECK(pipe(ports) == 0);
  const pid_t child = fork();
  MC_CHECK(child >= 0);
  runtime::RealRuntime runtime;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!pin.empty()) Pin(pin == "split" ? 1 : 0);
    std::byte* const store = NewStore(3);
    StoreService service(store);
    TcpTransport transport(runtime, options);
    const std::string endpoint = transport.Listen("127.0.0.1", 0, &service).value();
    MC_CHECK(write(ports[1], endpoint.c_str(), endpoint.size() + 1) > 0);
    const int flags = fcntl(raw_listener.get(), F_GETFL);
    MC_CHECK(fcntl(raw_listener.get(), F_SETFL, flags & ~O_NONBLOCK) == 0);
    ServeRaw(raw_listener.get(), store, raw_tuned);
    _exit(0);
  }
  if (!pin.empty()) Pin(0);
  char endpoint[64] = {};
  MC_CHECK(read(ports[0], endpoint, sizeof endpoint - 1) > 0);
  UniqueFd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = ResolveEndpoint(fmt::format("127.0.0.1:{}", raw_port)).value()[0];
  MC_CHECK(::connect(raw.get(), address.get(), address.size) == 0);
  TuneConnection(raw.get(), 0);
  if (raw_tuned) TuneSameHost(raw.get());
  TcpTransport transport(runtime, options);
  Client client = {transport, endpoint, raw.get(), NewStore(2), cell_ms * 1'000'000, runtime};
  MeasureAll(client, filter);
  ::kill(child, SIGKILL);
  return 0;
}

}  // namespace
}  // namespace mooncake::transfer

int main(int argc, char** argv) { return mooncake::transfer::Main(argc, argv); }
