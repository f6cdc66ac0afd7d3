# Headers, archive and package files. A wheel carries none of them.
if(NOT SKBUILD)
  include(CMakePackageConfigHelpers)
  set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/MooncakeStore")
  install(TARGETS mooncake_store EXPORT MooncakeStoreTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT library)
  install(EXPORT MooncakeStoreTargets NAMESPACE mooncake:: DESTINATION "${_package_dir}"
          COMPONENT library)
  configure_package_config_file(cmake/MooncakeStoreConfig.cmake.in
                                "${PROJECT_BINARY_DIR}/MooncakeStoreConfig.cmake"
                                INSTALL_DESTINATION "${_package_dir}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/MooncakeStoreConfigVersion.cmake"
                                   COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/MooncakeStoreConfig.cmake"
                "${PROJECT_BINARY_DIR}/MooncakeStoreConfigVersion.cmake"
                cmake/FindHiredis.cmake cmake/FindIbverbs.cmake
                cmake/FindNghttp2.cmake cmake/FindNuma.cmake cmake/Findhttplib.cmake cmake/Findxxhash.cmake
          DESTINATION "${_package_dir}" COMPONENT library)
endif()
