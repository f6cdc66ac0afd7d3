#include "support/etcd_fixture.h"

#include <openssl/evp.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "metadata/net/stream.h"

namespace mooncake::testing {
namespace {

using nlohmann::json;

constexpr uint64_t kStartMs = 30'000;
constexpr uint64_t kCommandMs = 5'000;
constexpr uint64_t kLapseMs = 20'000;

std::filesystem::path NewFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "mooncake-etcd-XXXXXX").string();
  return mkdtemp(pattern.data());
}

std::string Base64(const std::string& bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  text.resize(static_cast<size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return text;
}

// Every key that begins with `prefix`.
json All(const std::string& prefix) {
  if (prefix.empty()) return {{"key", Base64({'\0'})}, {"range_end", Base64({'\0'})}};
  std::string end = prefix;
  ++end.back();
  return {{"key", Base64(prefix)}, {"range_end", Base64(end)}};
}

}  // namespace

EtcdFixture::EtcdFixture(Runtime& runtime, EtcdTlsFiles tls,
                         std::vector<std::string> more_arguments)
    : runtime_(runtime),
      tls_(std::move(tls)),
      more_arguments_(std::move(more_arguments)),
      folder_(NewFolder()) {
  // Another process may take a port between the look and the start.
  for (int i = 0; i < 5; ++i) {
    port_ = FreePort();
    peer_port_ = FreePort();
    if (Start()) return;
    Wipe();
  }
}

EtcdFixture::~EtcdFixture() {
  Stop();
  std::filesystem::remove_all(folder_);
}

bool EtcdFixture::Start() {
  const std::string client = (tls_.ca_file.empty() ? "http" : "https") + Url().substr(4);
  const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port_);
  // Nothing here has to outlive a power failure, and elections of one member may be quick.
  std::vector<std::string> words = {
      "etcd",
      "--name=test",
      "--data-dir=" + (folder_ / "data").string(),
      "--listen-client-urls=" + client,
      "--advertise-client-urls=" + client,
      "--listen-peer-urls=" + peer,
      "--initial-advertise-peer-urls=" + peer,
      "--initial-cluster=test=" + peer,
      "--unsafe-no-fsync",
      "--heartbeat-interval=20",
      "--election-timeout=200",
      "--logger=zap",
      "--log-level=error",
  };
  if (!tls_.ca_file.empty()) {
    words.insert(words.end(), {"--cert-file=" + tls_.cert_file, "--key-file=" + tls_.key_file,
                               "--client-cert-auth", "--trusted-ca-file=" + tls_.ca_file});
  }
  words.insert(words.end(), more_arguments_.begin(), more_arguments_.end());
  process_.Start(std::move(words));
  const uint64_t deadline_ms = runtime_.NowMs() + kStartMs;
  while (runtime_.NowMs() < deadline_ms && process_.Running()) {
    const std::string answer = Command("/v3/kv/range", All("").dump());
    if (answer.find("\"header\"") != std::string::npos) return true;
    if (answer.find("user name is empty") != std::string::npos) return true;
    if (answer.find("404 page not found") != std::string::npos) return true;  // It has no gateway.
    runtime_.SleepMs(10);
  }
  Stop();
  return false;
}

void EtcdFixture::Wipe() { std::filesystem::remove_all(folder_ / "data"); }

void EtcdFixture::Flush() { Command("/v3/kv/deleterange", All("").dump()); }

void EtcdFixture::AwaitLapses() {
  const auto brief = [&] {
    const json found = json::parse(Command("/v3/kv/range", All("").dump()), nullptr, false);
    if (!found.is_object() || !found.contains("kvs")) return false;
    for (const json& key : found["kvs"]) {
      if (!key.contains("lease")) continue;
      const json asked = {{"ID", key["lease"]}};
      const json left = json::parse(Command("/v3/lease/timetolive", asked.dump()), nullptr, false);
      if (left.is_object() && std::stoll(left.value("grantedTTL", "0")) <= 3) return true;
    }
    return false;
  };
  const uint64_t deadline_ms = runtime_.NowMs() + kLapseMs;
  while (brief() && runtime_.NowMs() < deadline_ms) runtime_.SleepMs(20);
}

std::string EtcdFixture::Command(const std::string& path, const std::string& text) {
  const std::atomic<uint64_t> never{UINT64_MAX};
  metadata::Stream stream("etcd", never, runtime_);
  const uint64_t deadline_ms = runtime_.NowMs() + kCommandMs;
  std::optional<metadata::TlsOptions> tls;
  if (!tls_.ca_file.empty()) {
    tls = metadata::TlsOptions{tls_.ca_file, tls_.cert_file, tls_.key_file, ""};
  }
  if (!stream.Connect("127.0.0.1", port_, tls, deadline_ms)) return "";
  // Of this version an answer ends with its connection.
  const std::string request = base::StrCat(
      "POST ", path, " HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: ", text.size(),
      "\r\n\r\n", text);
  if (!stream.Send(request, deadline_ms)) return "";
  std::string answer;
  std::array<char, 16384> bytes;
  for (Result<size_t> count = size_t{0}; count.ok(); count = stream.Receive(bytes, deadline_ms)) {
    answer.append(bytes.data(), *count);
  }
  const size_t head = answer.find("\r\n\r\n");
  return head == std::string::npos ? "" : answer.substr(head + 4);
}

uint64_t EtcdFixture::Keys(const std::string& prefix) {
  json wanted = All(prefix);
  wanted["count_only"] = true;
  const json answer = json::parse(Command("/v3/kv/range", wanted.dump()), nullptr, false);
  return answer.is_object() ? std::stoull(answer.value("count", "0")) : 0;
}

void EtcdFixture::Put(const std::string& key, const std::string& value) {
  const json wanted = {{"key", Base64(key)}, {"value", Base64(value)}};
  Command("/v3/kv/put", wanted.dump());
}

}  // namespace mooncake::testing
