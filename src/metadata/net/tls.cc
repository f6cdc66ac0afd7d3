#include "metadata/net/tls.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstring>
#include <utility>

namespace mooncake::metadata {
namespace {

// The oldest entry of OpenSSL's queue says what went wrong; the rest is who met it.
std::string TakeReason() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(code)) return std::strerror(ERR_GET_REASON(code));
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown reason" : reason;
}

Error Unusable(std::string_view what, const std::string& file) {
  return InvalidArgument(
      fmt::format("metadata_url: {} '{}' cannot be used: {}", what, file, TakeReason()));
}

bool IsAddress(const std::string& host) {
  in6_addr unused;
  return inet_pton(AF_INET, host.c_str(), &unused) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

Status LoadFiles(SSL_CTX* context, const TlsOptions& options) {
  ERR_clear_error();
  const std::string& ca = options.ca_file;
  if (ca.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else if (SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr) != 1) {
    return Unusable("tls_ca", ca);
  }
  const std::string& cert = options.cert_file;
  if (cert.empty()) return Ok();
  if (SSL_CTX_use_certificate_chain_file(context, cert.c_str()) != 1) {
    return Unusable("tls_cert", cert);
  }
  const std::string& key = options.key_file.empty() ? cert : options.key_file;
  // An encrypted key would make OpenSSL ask at the terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Unusable("tls_key", key);
  }
  return Ok();
}

bool ExpectName(SSL* ssl, const std::string& name) {
  if (IsAddress(name)) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) == 1;
  }
  return SSL_set1_host(ssl, name.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
}

bool OfferProtocol(SSL* ssl, const std::string& protocol) {
  if (protocol.empty()) return true;
  const std::string offer = static_cast<char>(protocol.size()) + protocol;
  // 0 is success, of this function alone.
  return SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(offer.data()),
                             static_cast<unsigned>(offer.size())) == 0;
}

}  // namespace

struct Tls::Handles {
  ~Handles() {
    SSL_free(ssl);  // With its two BIOs.
    SSL_CTX_free(context);
  }
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;
  BIO* input = nullptr;
  BIO* output = nullptr;
};

Tls::Tls(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}
Tls::~Tls() = default;

Result<std::unique_ptr<Tls>> Tls::New(const TlsOptions& options, const std::string& host) {
  auto handles = std::make_unique<Handles>();
  handles->context = SSL_CTX_new(TLS_client_method());
  if (handles->context == nullptr) return MetadataError("TLS: " + TakeReason());
  SSL_CTX_set_min_proto_version(handles->context, TLS1_2_VERSION);
  SSL_CTX_set_verify(handles->context, SSL_VERIFY_PEER, nullptr);
  MC_RETURN_IF_ERROR(LoadFiles(handles->context, options));
  handles->ssl = SSL_new(handles->context);
  handles->input = BIO_new(BIO_s_mem());
  handles->output = BIO_new(BIO_s_mem());
  const bool whole =
      handles->ssl != nullptr && handles->input != nullptr && handles->output != nullptr;
  if (!whole) return MetadataError("TLS: out of memory");
  SSL_set_bio(handles->ssl, handles->input, handles->output);
  BIO_set_mem_eof_return(handles->input, -1);  // No bytes yet is not the end.
  if (!ExpectName(handles->ssl, options.name.empty() ? host : options.name)) {
    return InvalidArgument(fmt::format("metadata_url: '{}' is no name for a certificate",
                                       options.name.empty() ? host : options.name));
  }
  if (!OfferProtocol(handles->ssl, options.protocol)) return MetadataError("TLS: " + TakeReason());
  SSL_set_connect_state(handles->ssl);
  return std::make_unique<Tls>(std::move(handles));
}

Error Tls::Refused(int ssl_error) const {
  const long verified = SSL_get_verify_result(handles_->ssl);
  if (verified != X509_V_OK) {
    ERR_clear_error();
    return MetadataError(fmt::format("the server's certificate is refused: {}",
                                     X509_verify_cert_error_string(verified)));
  }
  if (ssl_error != SSL_ERROR_SSL) return MetadataError("TLS ended unexpectedly");
  return MetadataError("TLS: " + TakeReason());
}

Result<Tls::Want> Tls::Handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(handles_->ssl);
  if (done == 1) return Want::kNothing;
  const int error = SSL_get_error(handles_->ssl, done);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Want::kInput;
  return Refused(error);
}

Status Tls::Encrypt(std::string_view plain) {
  ERR_clear_error();
  size_t written = 0;
  if (plain.empty() || SSL_write_ex(handles_->ssl, plain.data(), plain.size(), &written) == 1) {
    return Ok();
  }
  return Refused(SSL_get_error(handles_->ssl, 0));
}

Result<Tls::Want> Tls::Decrypt(std::span<char> plain, size_t& count) {
  ERR_clear_error();
  count = 0;
  if (SSL_read_ex(handles_->ssl, plain.data(), plain.size(), &count) == 1) return Want::kNothing;
  const int error = SSL_get_error(handles_->ssl, 0);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Want::kInput;
  if (error == SSL_ERROR_ZERO_RETURN) return Want::kEnd;
  return Refused(error);
}

void Tls::AddInput(std::string_view wire) {
  BIO_write(handles_->input, wire.data(), static_cast<int>(wire.size()));
}

std::string Tls::TakeOutput() {
  std::string wire(BIO_ctrl_pending(handles_->output), '\0');
  if (!wire.empty()) BIO_read(handles_->output, wire.data(), static_cast<int>(wire.size()));
  return wire;
}

bool Tls::HasInput() const {
  return SSL_pending(handles_->ssl) > 0 || BIO_ctrl_pending(handles_->input) > 0;
}

}  // namespace mooncake::metadata
