// The sockets between a daemon and its clients: frames of calls, and packets beside them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "client/dummy/call_frame.h"
#include "client/dummy/side_channel.h"
#include "client/dummy/unix_socket.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "mooncake/v1/store_daemon.pb.h"

namespace mooncake::client {
namespace {

using fuzz::Format;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;

struct Sockets {
  Sockets() {
    int fds[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) abort();
    ours = Descriptor(fds[0]);
    theirs = Descriptor(fds[1]);
  }
  Descriptor ours;
  Descriptor theirs;
};

std::string FrameOf(uint32_t promised, const std::string& body) {
  CallHeader header;
  header.type = CallType::kExist;
  header.size = promised;
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

// Goes out in packets of a size that the input's last byte decides.
std::string ReceiveFrame(const std::string& input) {
  Sockets sockets;
  const size_t packet = input.empty() ? 1 : 1 + static_cast<unsigned char>(input.back()) * 300;
  size_t sent = 0;
  while (sent < input.size()) {
    const size_t size = std::min(packet, input.size() - sent);
    if (send(sockets.theirs.get(), input.data() + sent, size, MSG_NOSIGNAL) < 0) break;
    sent += size;
  }
  sockets.theirs = Descriptor();
  CallFrame frame;
  const Status received = frame.Receive(sockets.ours.get(), [](bool) { return true; });
  if (!received.ok()) {
    MC_FUZZ_CHECK(received.code() == ErrorCode::kInvalidArgument ||
                  received.code() == ErrorCode::kTransport);
    MC_FUZZ_CHECK(frame.body().empty());
    return kRight;
  }
  MC_FUZZ_CHECK(frame.header().magic == kCallMagic && frame.header().size <= kFrameBytesMax);
  const std::string_view body = TextOf(frame.body());
  MC_FUZZ_CHECK(body == std::string_view(input).substr(sizeof(CallHeader), body.size()));
  daemon::v1::KeysRequest request;
  (void)frame.Unpack(&request);
  return kRight;
}

TEST(DummyFuzz, AFrameIsWhatWasSentOrNone) {
  daemon::v1::KeysRequest request;
  request.mutable_keys()->set_blob("key");
  request.mutable_keys()->add_sizes(3);
  const std::string body = request.SerializeAsString();
  RunTarget({.samples = {FrameOf(static_cast<uint32_t>(body.size()), body),
                         FrameOf(100'000, std::string(100'000, 'b')), FrameOf(0, "")},
             .format = Format::kBinary,
             .check = ReceiveFrame,
             .make =
                 [body](Random& random) {
                   const auto promised = static_cast<uint32_t>(
                       random.OneIn(2) ? random.Extreme() : body.size() + random.Below(3) - 1);
                   const std::string made = FrameOf(promised, body);
                   return random.OneIn(3) ? InputFrom({made}, Format::kBinary, random) : made;
                 },
             .allocated_bytes_max = 2 * fuzz::kReservedByParse,
             .cost = 2});
}

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

// The first byte says how many descriptors come along.
std::string ReceiveBeside(const std::string& input) {
  const int before = OpenDescriptors();
  {
    Sockets sockets;
    const std::string bytes = input.empty() ? "" : input.substr(1, 60'000);
    const size_t fds = input.empty() ? 0 : static_cast<unsigned char>(input[0]) % 20;
    iovec vector = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message = {};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(20 * sizeof(int))] = {};
    if (fds > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(fds * sizeof(int));
      for (size_t i = 0; i < fds; ++i) {
        const int fd = sockets.theirs.get();
        std::memcpy(CMSG_DATA(part) + i * sizeof(int), &fd, sizeof fd);
      }
    }
    MC_FUZZ_CHECK(sendmsg(sockets.theirs.get(), &message, MSG_NOSIGNAL) >= 0);
    SideMessage side;
    const Result<Packet> packet =
        ReceivePacket(sockets.ours.get(), MutableBytesAt(&side, sizeof side));
    if (packet) {
      MC_FUZZ_CHECK(packet->size == bytes.size() && fds <= 1);
      MC_FUZZ_CHECK(static_cast<bool>(packet->fd) == (fds == 1));
    } else {
      MC_FUZZ_CHECK(packet.code() == ErrorCode::kInvalidArgument);
      MC_FUZZ_CHECK(bytes.size() > sizeof side || fds > 1);
    }
  }
  MC_FUZZ_CHECK(OpenDescriptors() == before);
  return kRight;
}

TEST(DummyFuzz, APacketBesideTheCallsLeavesNoDescriptorBehind) {
  const SideMessage message;
  const std::string bytes(reinterpret_cast<const char*>(&message), sizeof message);
  const auto with = [&](char fds) {
    std::string packet(1, fds);
    packet += bytes;
    return packet;
  };
  RunTarget({.samples = {with(0), with(1), with(2), bytes},
             .format = Format::kBinary,
             .check = ReceiveBeside,
             .cost = 8});
}

}  // namespace
}  // namespace mooncake::client
